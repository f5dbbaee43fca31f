"""Pairs of builds for each file outside of a spec that a build reads, or finds beside those that it reads."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.builders.audit import (
    SUFFIXES,
    Base,
    Change,
    Changes,
    Expected,
    Fields,
    Pair,
    chats,
    edit,
    file_of_chats,
    pairs_of,
    plain,
    replaced,
    rows,
    texts,
    token_files,
    touched,
    written,
)
from tests.builders.audit_keys import decoding, pieces, ranks, saved
from tests.builders.chats import CHATML
from tests.builders.row_files import write_rows
from tests.builders.token_files import write_megatron
from tests.tokenloom.test_sentencepiece_tokenizer import train
from tests.tokenloom.test_tokenizers import write_ranks

#: every kind of file that a build reads beside its spec, and those beside them that it must not depend on
FILES = (
    *(f"an input of {kind}" for kind in (*SUFFIXES, "json", "text", "huggingface")),
    *(f"an input with {suffix}" for suffix in (".gz", ".bz2", ".zst")),
    *("README.md of a folder", ".huggingface.yaml of a folder", "dataset_infos.json of a folder"),
    *("state.json of a saved dataset", "dataset_info.json of a saved dataset", "an arrow file of a saved dataset"),
    *("megatron .bin", "megatron .idx", "olmo .npy", "olmo .csv.gz", "olmo labels_mask", "llmc .bin"),
    *("nanogpt .bin", "nanogpt meta.pkl", "datatrove .ds", "datatrove .ds.index", "datatrove .ds.loss"),
    *("datatrove .ds.metadata", "huggingface tokens .arrow", "huggingface tokens .parquet"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.json"),
    *("tiktoken ranks", "sentencepiece model", "tokenizer.json of decode", "tiktoken ranks of decode"),
    *("sentencepiece model of decode", "tokenizer_config.json of decode"),
    *("documents.exclude", "marks: aligned parquet", "marks: table of path and row", "marks: table of ids"),
    *("marks: table of contents", "marks: dolma", "marks: list of ids", "marks: list of ids in JSON lines"),
    *("marks: list of ids in parquet", "marks: list of contents", "marks: positions", "marks: repeat"),
    "chat template",
)


def _rewritten(file: str, made: Sequence[Fields]) -> Change:
    def change(folder: Path, _fields: Fields) -> None:
        write_rows(folder / file, made)

    return change


# ---- inputs


def _inputs() -> Iterator[Pair]:
    changed = rows()
    changed[1] |= {"text": "another text"}
    for kind, suffix in SUFFIXES.items():
        file = f"in/a.{suffix}"
        same = {"a_new_time": ("same", touched(file)), "another_row": ("bytes", _rewritten(file, changed))}
        yield from pairs_of(f"an input of {kind}", plain(kind), **same)  # type: ignore[arg-type]
        unread = rows()
        unread[1] |= {"other": "Other 1"}
        yield Pair(
            f"file an input of {kind}", "a column that is not read", "name", plain(kind), _rewritten(file, unread)
        )
    as_json = partial(_one_file, suffix="json")
    yield from pairs_of("an input of json", as_json, another_row=("bytes", _rewritten("in/a.json", changed)))
    line = edit("in/a.txt", replaced("one of a", "two of a"))
    yield from pairs_of(
        "an input of text", texts, another_line=("bytes", line), a_new_time=("same", touched("in/a.txt"))
    )
    hugging = plain("huggingface")
    other = ("bytes", _rewritten("in/train.jsonl", changed))
    beside = ("same", _rewritten("in/test.jsonl", changed))
    yield from pairs_of("an input of huggingface", hugging, another_row=other, another_split=beside)  # type: ignore[arg-type]
    for suffix, pack in _PACKED.items():
        base = partial(_one_file, suffix=f"jsonl{suffix}", pack=pack)
        again = edit(f"in/a.jsonl{suffix}", lambda data, pack=pack: pack(_lines(rows()), 1))  # type: ignore[misc]
        row = edit(f"in/a.jsonl{suffix}", lambda data, pack=pack: pack(_lines(changed), 9))  # type: ignore[misc]
        yield from pairs_of(
            f"an input with {suffix}", base, another_row=("bytes", row), packed_otherwise=("name", again)
        )


def _lines(made: Sequence[Fields]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made).encode()


def _zst(data: bytes, level: int) -> bytes:
    codec = pa.Codec("zstd", compression_level=level)
    return bytes(codec.compress(data, asbytes=True))


_PACKED: dict[str, Callable[[bytes, int], bytes]] = {
    ".gz": lambda data, level: gzip.compress(data, level, mtime=0),
    ".bz2": bz2.compress,
    ".zst": _zst,
}


def _one_file(folder: Path, suffix: str, pack: Callable[[bytes, int], bytes] | None = None) -> Fields:
    path = folder / "in" / f"a.{suffix}"
    if pack:
        path.parent.mkdir()
        path.write_bytes(pack(_lines(rows()), 9))
    else:
        write_rows(path, rows())
    return {"sources": [{"kind": "jsonl", "path": str(path)}]}


# ---- folders of data sets


_LINES = "n,text\n1,one\n2,two\n3,three\n"


def _folder(folder: Path, name: str, text: str, lines: str = _LINES, more: str = "", **source: Any) -> Fields:
    (folder / "in").mkdir()
    (folder / "in" / "more.csv").write_text("n,text\n" + more)
    (folder / "in" / "train.csv").write_text(lines)
    (folder / "in" / name).write_text(text)
    return {"sources": [{"kind": "huggingface", "name": str(folder / "in")} | source]}


def _configs(text: str) -> str:
    return f"configs:\n- config_name: default\n  data_files: train.csv\n{text}"


def _infos(kind: str) -> str:
    column = {"dtype": kind, "_type": "Value"}
    return json.dumps({"default": {"features": {"n": column, "text": {"dtype": "string", "_type": "Value"}}}})


def _folders() -> Iterator[Pair]:
    card = f"---\n{_configs('  nrows: 2')}\n---\n"
    base = partial(_folder, name="README.md", text=card)
    fewer = edit("in/README.md", replaced("nrows: 2", "nrows: 1"))
    prose = edit("in/README.md", lambda data: data + b"prose\n")
    changes: Changes = {"fewer_rows": ("bytes", fewer), "prose": ("name", prose)}
    yield from pairs_of("README.md of a folder", base, **changes, a_new_time=("same", touched("in/README.md")))
    separated = partial(
        _folder, name="README.md", text=f"---\n{_configs('  sep: ;')}\n---\n", lines="text;n,text\none;x,two\n"
    )
    comma = edit("in/README.md", replaced("sep: ;", "sep: ','"))
    yield from pairs_of("README.md of a folder", separated, another_separator=("bytes", comma))
    named = partial(_folder, name="README.md", text=f"---\n{_configs('')}\n---\n", more="4,four\n")
    files = edit("in/README.md", replaced("train.csv", "more.csv"))
    yield from pairs_of("README.md of a folder", named, another_file=("bytes", files))
    yaml = partial(_folder, name=".huggingface.yaml", text=_configs("  skiprows: [1]"))
    rule = edit("in/.huggingface.yaml", replaced("[1]", "[2]"))
    split = partial(_folder, name=".huggingface.yaml", text=_configs("  sep: ;"), lines="text;n,text\none;x,two\n")
    sep = edit("in/.huggingface.yaml", replaced("sep: ;", "sep: ','"))
    yield from pairs_of(".huggingface.yaml of a folder", split, another_separator=("bytes", sep))
    added = edit("in/.huggingface.yaml", written(_configs("  skiprows: [1]")))
    yield from pairs_of(".huggingface.yaml of a folder", yaml, other_rows=("bytes", rule))
    yield from pairs_of(".huggingface.yaml of a folder", base, is_added=("bytes", added))
    taken = partial(_folder, name=".huggingface.yaml", text=_configs("  skiprows: [1]"), take=1)
    yield Pair("file .huggingface.yaml of a folder", "with take", "bytes", taken, rule)
    infos = edit("in/dataset_infos.json", written(_infos("string")))
    numbers = "n,text\n1e15,one\n2e15,two\n"  # as a text 1e+15
    typed = partial(_folder, name="dataset_infos.json", text=_infos("int64"), lines=numbers, id="n")
    both = partial(_typed, base=typed, card=card)
    yield from pairs_of("dataset_infos.json of a folder", both, ids_of_another_type=("bytes", infos))


def _typed(folder: Path, base: Base, card: str) -> Fields:
    fields = base(folder)
    (folder / "in" / "README.md").write_text(card)
    return fields


def _saved_dataset(folder: Path) -> Fields:
    for i, name in enumerate(("data-00000-of-00002", "data-00001-of-00002")):
        write_rows(folder / "in" / f"{name}.arrow", rows(12 * i))
    files = [{"filename": f"data-0000{i}-of-00002.arrow"} for i in range(2)]
    (folder / "in" / "state.json").write_text(json.dumps({"_data_files": files, "_split": "train"}))
    (folder / "in" / "dataset_info.json").write_text(json.dumps({"description": "", "features": {}}))
    return {"sources": [{"kind": "arrow", "path": str(folder / "in")}]}


def _saved_datasets() -> Iterator[Pair]:
    one = written(json.dumps({"_data_files": [{"filename": "data-00000-of-00002.arrow"}]}))
    state, same = edit("in/state.json", one), edit("in/state.json", replaced('"train"', '"test"'))
    first, second = (f"data-0000{i}-of-00002.arrow" for i in range(2))
    swapped = written(json.dumps({"_data_files": [{"filename": second}, {"filename": first}]}))
    changes: Changes = {"fewer_files": ("bytes", state), "what_is_not_read": ("same", same)}
    changes |= {"another_order": ("bytes", edit("in/state.json", swapped))}
    yield from pairs_of("state.json of a saved dataset", _saved_dataset, **changes)
    info = edit("in/dataset_info.json", replaced('""', '"prose"'))
    yield from pairs_of("dataset_info.json of a saved dataset", _saved_dataset, what_is_not_read=("same", info))
    data = _rewritten(f"in/{second}", rows(20))
    yield from pairs_of("an arrow file of a saved dataset", _saved_dataset, other_rows=("bytes", data))


# ---- tokens


def _ids(values: Sequence[int], dtype: Any = np.uint16) -> Callable[[bytes], bytes]:
    return written(np.array(values, dtype).tobytes())


def _tokens() -> Iterator[Pair]:
    changed = [5, 6, 0, 7, 8, 11, 0, 10, 0]
    ends, learned = [3, 9], [1, 1, 1, 0, 0, 1, 1, 1, 1]

    def of(form: str, key: str, **changes: tuple[Expected, Change]) -> Iterator[Pair]:
        is_parquet = key.endswith(".parquet")
        yield from pairs_of(key, partial(token_files, form=form, is_parquet=is_parquet), **changes)

    for form, file in {"megatron": "a.bin", "olmo": "token_ids_a.npy", "nanogpt": "a.bin", "datatrove": "a.ds"}.items():
        suffix = file[file.index(".") :]
        yield from of(form, f"{form} {suffix}", other_ids=("bytes", edit(f"in/{file}", _ids(changed))))
        yield from of(form, f"{form} {suffix}", a_new_time=("same", touched(f"in/{file}")))
    yield from of("megatron", "megatron .idx", other_bounds=("bytes", _other_index))
    lines = edit("in/token_ids_a.csv.gz", written(gzip.compress(b"0,3\n3,9\n", mtime=0)))
    yield from of("olmo", "olmo .csv.gz", other_bounds=("bytes", lines), is_missing=("bytes", _without_lines))
    mask = edit("in/labels_mask_a.npy", _ids(learned, np.uint8))
    yield from of("olmo", "olmo labels_mask", other_targets=("bytes", mask))
    last = edit("in/a.bin", lambda data: data[:-4] + b"\x0b\0\x0c\0")
    yield from of("llmc", "llmc .bin", other_ids=("bytes", last))
    pickle = edit("in/meta.pkl", written("another"))
    yield from of("nanogpt", "nanogpt meta.pkl", is_never_read=("same", pickle))
    yield from of(
        "datatrove", "datatrove .ds.index", other_bounds=("bytes", edit("in/a.ds.index", _ids(ends, np.uint64)))
    )
    yield from of(
        "datatrove", "datatrove .ds.loss", other_targets=("bytes", edit("in/a.ds.loss", _ids(learned, np.uint8)))
    )
    label = edit("in/a.ds.metadata", replaced("gpt2", "llama"))
    yield from of("datatrove", "datatrove .ds.metadata", another_tokenizer=("name", label))
    made = [{"input_ids": [5, 6], "labels": [5, 6]}, {"input_ids": [7, 8, 9], "labels": [7, 8, 9]}]
    for suffix in ("arrow", "parquet"):
        key = f"huggingface tokens .{suffix}"
        yield from of("huggingface", key, other_targets=("bytes", _rewritten(f"in/a.{suffix}", made)))


def _without_lines(folder: Path, _fields: Fields) -> None:
    (folder / "in" / "token_ids_a.csv.gz").unlink()


def _other_index(folder: Path, _fields: Fields) -> None:
    write_megatron(folder / "other", [[[5, 6, 0]], [[7, 8, 9, 0]], [[10, 0]]])
    (folder / "other.idx").rename(folder / "in" / "a.idx")


# ---- tokenizers and templates


def _other_ranks(folder: Path, _fields: Fields) -> None:
    write_ranks(folder / "a.tiktoken", (b"ab", b"te", b"  "))


def _other_merges(file: str) -> Change:
    def change(folder: Path, _fields: Fields) -> None:
        path = folder / file
        data = json.loads(path.read_text())
        vocabulary = data["model"]["vocab"]
        vocabulary["te"] = max(data_id["id"] for data_id in data["added_tokens"]) + 1
        data["model"]["merges"].append(["t", "e"])
        path.write_text(json.dumps(data))

    return change


def _tokenizers() -> Iterator[Pair]:
    file, config = "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"
    merges = _other_merges(file)
    spaced = edit(file, lambda data: data + b"\n")
    times: Changes = {"other_merges": ("bytes", merges), "white_space": ("bytes", spaced)}
    yield from pairs_of("tokenizer.json", saved, **times, a_new_time=("same", touched(file)))
    ended = partial(_saved_without_eot, token="<s>")
    other = edit(config, replaced("<s>", "<bos>"))
    unread = edit(config, written(json.dumps({"eos_token": "<s>", "model_max_length": 5})))
    yield from pairs_of("tokenizer_config.json", ended, another_end=("bytes", other), what_is_not_read=("same", unread))
    named = edit(config, replaced('"bos_token": "<s>"', '"bos_token": "<bos>"'))
    of_chat = partial(_own_template, name="tokenizer_config.json")
    yield Pair("file tokenizer_config.json", "a token of the template", "bytes", of_chat, named)
    template = edit(config, replaced("im_start|>tools", "im_start|>given"))
    yield Pair("file tokenizer_config.json", "the template", "bytes", of_chat, template)
    yield Pair(
        "file tokenizer_config.json", "is added for texts", "same", saved, edit(config, written('{"bos_token": "<s>"}'))
    )
    of_file = partial(_own_template, name="chat_template.jinja")
    jinja = edit("tokenizer/chat_template.jinja", replaced("im_start|>tools", "im_start|>given"))
    yield from pairs_of("chat_template.jinja", of_file, is_another=("bytes", jinja))
    added = edit("tokenizer/chat_template.jinja", written(CHATML.replace("tools\\n", "given\\n")))
    yield from pairs_of("chat_template.jinja", of_chat, is_added=("bytes", added))
    yield Pair("file chat_template.jinja", "beside a template of the spec", "same", chats(), added)
    old = partial(_own_template, name="special_tokens_map.json")
    tokens = edit("tokenizer/special_tokens_map.json", replaced("<s>", "<bos>"))
    yield from pairs_of("special_tokens_map.json", old, another_token=("bytes", tokens))
    vocabulary = edit("tokenizer/vocab.json", written("{}"))
    yield from pairs_of("vocab.json", saved, is_never_read=("same", vocabulary))
    model = edit("tokenizer.model", lambda _: train("bpe"))
    yield from pairs_of(
        "tiktoken ranks", ranks, other_merges=("bytes", _other_ranks), a_new_time=("same", touched("a.tiktoken"))
    )
    yield from pairs_of("sentencepiece model", pieces, is_another=("bytes", model))
    base = partial(token_files, form="nanogpt")
    yield from pairs_of("tiktoken ranks of decode", decoding(base, ranks), other_merges=("bytes", _other_ranks))
    yield from pairs_of("tokenizer.json of decode", decoding(base, saved), other_merges=("bytes", merges))
    yield from pairs_of("tokenizer_config.json of decode", decoding(base, ended), another_end=("bytes", other))
    yield from pairs_of("sentencepiece model of decode", decoding(base, pieces), is_another=("bytes", model))


def _saved_without_eot(folder: Path, token: str) -> Fields:
    """Write a tokenizer whose end of text only its config names."""
    fields = saved(folder)
    del fields["tokenizer"]["eot"]
    path = folder / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<|end|>"))
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    return fields


def _own_template(folder: Path, name: str) -> Fields:
    """Write a tokenizer with a template, and with a token that it names, in the file of a name."""
    fields = file_of_chats(folder, template=None)
    template = "{{ bos_token }}" + CHATML
    place = folder / "tokenizer"
    config: Fields = {"eos_token": "<|endoftext|>", "bos_token": "<s>", "added_tokens_decoder": {}}
    if name == "special_tokens_map.json":
        (place / name).write_text(json.dumps({"bos_token": "<s>", "eos_token": "<|endoftext|>"}))
        config = {"eos_token": "<|endoftext|>"}
    if name == "chat_template.jinja":
        (place / name).write_text(template)
    else:
        config["chat_template"] = template
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    return fields


def _templates() -> Iterator[Pair]:
    other = edit("chat.jinja", replaced("<|im_end|>\\n", "<|im_end|>"))
    tools = edit("chat.jinja", lambda data: data + b"{# a comment #}")
    changes: Changes = {"is_another": ("bytes", other), "a_comment": ("name", tools)}
    yield from pairs_of("chat template", chats(), **changes, a_new_time=("same", touched("chat.jinja")))


def file_pairs() -> Sequence[Pair]:
    """Return the pairs of files."""
    return [*_inputs(), *_folders(), *_saved_datasets(), *_tokens(), *_tokenizers(), *_templates()]
