"""A pair of builds, or more, for each key of a spec."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tests.builders.audit import (
    SUFFIXES,
    Base,
    Expected,
    Fields,
    Pair,
    assign,
    chats,
    csv_lines,
    moved,
    plain,
    rows,
    source_of,
    texts,
    token_files,
    with_fields,
)
from tests.builders.chats import chat_tokenizer
from tests.builders.row_files import write_rows
from tests.tokenloom.test_sentencepiece_tokenizer import train
from tests.tokenloom.test_tokenizers import write_ranks
from tokenloom.spec.build_spec import BuildSpec, models_by_kind


def keys_of(model: type[BaseModel] = BuildSpec, prefix: str = "") -> Iterator[str]:
    """Yield every key of a spec, with the kind of a source, tokenizer or runner before its own: "sources.csv.quote"."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        models = models_by_kind(field)
        for kind, inner in models.items():
            yield from keys_of(inner, f"{key}.{kind}." if kind else f"{key}.")
        if not models and name != "kind":
            yield key


def pair(key: str, label: str, expected: Expected, base: Base, change: Any) -> Pair:
    """Return a pair; the change may be the value of the key in a spec whose first source is meant."""
    return Pair(key, label, expected, base, change)


def value(key: str, base: Base, new: Any, expected: Expected, path: str = "") -> Pair:
    """Return the pair that gives another value to a key."""
    return Pair(key, f"becomes {json.dumps(new)}"[:60], expected, base, assign(path or key, new))


# ---- sources

_COLUMN_KINDS = (*SUFFIXES, "huggingface")


def _columns(kind: str) -> Iterator[Pair]:
    """Yield the pairs of the keys that all sources of rows have."""
    key, at = f"sources.{kind}.", "sources.0."
    yield value(f"{key}text", plain(kind), "other", "bytes", f"{at}text")
    if kind != "arrayrecord":  # whose records are texts by default
        yield Pair(
            f"{key}text",
            "the default is written out",
            "same",
            _without(plain(kind), "text"),
            assign(f"{at}text", "text"),
        )
    yield value(f"{key}id", plain(kind, id="id"), "key", "bytes", f"{at}id")
    yield value(f"{key}id", plain(kind), "id", "bytes", f"{at}id")
    yield value(f"{key}filter", plain(kind), "score >= 3", "bytes", f"{at}filter")
    yield value(f"{key}filter", plain(kind, filter="score >= 3"), "score >= 5", "bytes", f"{at}filter")
    yield value(f"{key}messages", chats(kind), "chat", "bytes", f"{at}messages")
    yield value(f"{key}tools", chats(kind), "functions", "bytes", f"{at}tools")
    yield value(f"{key}layout", chats(kind), "messages", "same", f"{at}layout")
    whole = chats(kind, messages=".", layout="alpaca")
    yield value(f"{key}layout", whole, "prompt_completion", "bytes", f"{at}layout")
    if kind != "huggingface":
        yield from _files(kind, plain(kind))


def _without(base: Base, name: str) -> Base:
    def made(folder: Path) -> Fields:
        fields = base(folder)
        source_of(fields).pop(name)
        return fields

    return made


def _files(kind: str, base: Base) -> Iterator[Pair]:
    """Yield the pairs of the keys that all sources of files have."""
    key, at = f"sources.{kind}.", "sources.0."
    yield Pair(f"{key}path", "the inputs lie in another folder", "same", base, moved("in", f"{at}path"))
    yield Pair(f"{key}path", "names the folder in another way", "same", base, _dotted)
    yield Pair(f"{key}path", "is a pattern of folders too", "same", base, _any_folder)
    yield Pair(f"{key}path", "matches fewer files", "bytes", base, _only_first)
    yield Pair(f"{key}path", "a file has another name", "name", base, _renamed)
    yield value(f"{key}name", base, "elsewhere", "name", f"{at}name")
    yield value(f"{key}leave_out", base, ["nothing*", "no/*"], "same", f"{at}leave_out")
    yield value(f"{key}leave_out", base, ["b.*"], "bytes", f"{at}leave_out")


def _dotted(_folder: Path, fields: Fields) -> None:
    source_of(fields)["path"] = source_of(fields)["path"].replace("/in/", "/in/../in/./")


def _any_folder(_folder: Path, fields: Fields) -> None:
    source_of(fields)["path"] = source_of(fields)["path"].replace("/in/", "/in/**/")


def _only_first(_folder: Path, fields: Fields) -> None:
    source_of(fields)["path"] = source_of(fields)["path"].replace("*.", "a*.")


def _renamed(folder: Path, _fields: Fields) -> None:
    for path in sorted((folder / "in").iterdir()):
        if path.name.startswith("a."):
            path.rename(path.with_name(path.name.replace("a.", "aa.", 1)))


def _csv() -> Iterator[Pair]:
    key, at = "sources.csv.", "sources.0."
    yield value(f"{key}delimiter", csv_lines("one;1,x\ntwo;2,y\n"), ";", "bytes", f"{at}delimiter")
    yield value(f"{key}delimiter", csv_lines("one;1,x\ntwo;2,y\n"), ",", "same", f"{at}delimiter")
    yield value(f"{key}quote", csv_lines("'one',x\n'two',y\n"), "'", "bytes", f"{at}quote")
    yield value(f"{key}quote", csv_lines('"one",x\n"two",y\n'), "", "bytes", f"{at}quote")
    yield value(f"{key}escape", csv_lines('"one \\\\ two",x\n'), "\\", "bytes", f"{at}escape")
    yield value(f"{key}header", csv_lines("0,1\none,x\n", header=True), False, "bytes", f"{at}header")
    named = csv_lines("one,x\ntwo,y\n", text="text", columns=["text", "other"])
    yield value(f"{key}columns", named, ["other", "text"], "bytes", f"{at}columns")


def _text() -> Iterator[Pair]:
    yield from _files("text", texts)
    yield value("sources.text.separator", texts, "\n", "bytes", "sources.0.separator")
    yield value("sources.text.separator", partial(texts, separator="\n"), "two", "bytes", "sources.0.separator")


def _hugging_face() -> Iterator[Pair]:
    key, at = "sources.huggingface.", "sources.0."
    base = plain("huggingface")
    builder = _builder
    yield Pair(f"{key}name", "the folder lies elsewhere", "same", base, moved("in", f"{at}name"))
    yield Pair(f"{key}name", "is another folder", "bytes", base, _other_folder)
    yield Pair(
        f"{key}config", "is another one", "bytes", partial(_configs, config="small"), assign(f"{at}config", "large")
    )
    yield value(f"{key}split", base, "test", "bytes", f"{at}split")
    yield Pair(f"{key}split", "the default is written out", "same", base, assign(f"{at}split", "train"))
    yield value(f"{key}revision", base, "main", "name", f"{at}revision")
    yield value(f"{key}data_files", base, "t*.jsonl", "bytes", f"{at}data_files")
    yield Pair(f"{key}data_files", "lie elsewhere", "same", builder, moved("in", f"{at}data_files"))
    yield Pair(
        f"{key}data_files", "of a builder are others", "bytes", builder, assign(f"{at}data_files", "{}/in/test.jsonl")
    )
    yield value(f"{key}take", base, 5, "bytes", f"{at}take")
    yield value(f"{key}take", plain("huggingface", take=5), 7, "bytes", f"{at}take")


def _builder(folder: Path) -> Fields:
    fields = plain("huggingface")(folder)
    source_of(fields).update(name="json", data_files=str(folder / "in" / "train.jsonl"))
    return fields


def _other_folder(folder: Path, fields: Fields) -> None:
    write_rows(folder / "other" / "train.jsonl", rows(100))
    source_of(fields)["name"] = str(folder / "other")


def _configs(folder: Path, config: str) -> Fields:
    fields = plain("huggingface", config=config)(folder)
    names = {"small": "train", "large": "test"}
    configs = "".join(f"- config_name: {name}\n  data_files: {file}.jsonl\n" for name, file in names.items())
    (folder / "in" / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    return fields


def _tokens() -> Iterator[Pair]:
    key, at = "sources.tokens.", "sources.0."
    base = partial(token_files, form="nanogpt")
    yield Pair(f"{key}path", "the inputs lie in another folder", "same", base, moved("in", f"{at}path"))
    yield Pair(f"{key}path", "a file has another name", "name", base, _renamed)
    yield value(f"{key}name", base, "elsewhere", "name", f"{at}name")
    yield value(f"{key}leave_out", base, "nothing*", "same", f"{at}leave_out")
    yield Pair(f"{key}leave_out", "a file", "bytes", partial(_two_token_files), assign(f"{at}leave_out", ["b.*"]))
    yield value(f"{key}format", partial(token_files, form="megatron"), "nanogpt", "bytes", f"{at}format")
    yield value(f"{key}dtype", base, "uint8", "bytes", f"{at}dtype")
    yield value(f"{key}dtype", base, "uint16", "name", f"{at}dtype")


def _two_token_files(folder: Path) -> Fields:
    fields = token_files(folder, "nanogpt")
    (folder / "in" / "b.bin").write_bytes(b"\x0b\0\x0c\0\0\0")
    return fields


# ---- tokenizers

OTHER_BRANCH = "other"  # of the model on the hub that a test runs


def ranks(folder: Path, **more: Any) -> Fields:
    """Write files of rows and ranks of tiktoken."""
    path = write_ranks(folder / "a.tiktoken")
    special = {"<|endoftext|>": 300, "<s>": 301}
    tokenizer = {"kind": "tiktoken", "ranks": str(path), "pattern": "gpt2", "special_tokens": special} | more
    return plain()(folder) | {"tokenizer": tokenizer}


def pieces(folder: Path, **more: Any) -> Fields:
    """Write files of rows and a model of SentencePiece."""
    (folder / "tokenizer.model").write_bytes(train("unigram"))
    return plain()(folder) | {"tokenizer": {"kind": "sentencepiece", "path": str(folder / "tokenizer.model")} | more}


def saved(folder: Path, **more: Any) -> Fields:
    """Write files of rows and a folder with a tokenizer."""
    return plain()(folder) | {"tokenizer": chat_tokenizer(folder / "tokenizer") | more}


def _tokenizers() -> Iterator[Pair]:
    byte = with_fields(plain(), tokenizer={"kind": "byte"})
    yield value("tokenizer.byte.name", byte, "bytes", "bytes", "tokenizer.name")
    bases: dict[str, Base] = {"tiktoken": ranks, "huggingface": saved, "sentencepiece": pieces}
    for kind, base in bases.items():
        key, end = f"tokenizer.{kind}.", "<sep>" if kind == "sentencepiece" else "<s>"
        yield value(f"{key}name", base, "elsewhere", "bytes", "tokenizer.name")
        yield value(f"{key}eot", base, end, "bytes", "tokenizer.eot")
        yield value(f"{key}bos", base, "<s>", "bytes", "tokenizer.bos")
        yield value(f"{key}backend", base, "reference", "same", "tokenizer.backend")
    yield Pair("tokenizer.huggingface.path", "lies elsewhere", "same", saved, moved("tokenizer", "tokenizer.path"))
    file = assign("tokenizer.path", "{}/tokenizer/tokenizer.json")
    yield Pair("tokenizer.huggingface.path", "is the file in the folder", "same", saved, file)
    yield Pair(
        "tokenizer.sentencepiece.path", "lies elsewhere", "same", pieces, _model_elsewhere("tokenizer.model", "path")
    )
    yield Pair("tokenizer.tiktoken.ranks", "lie elsewhere", "same", ranks, _model_elsewhere("a.tiktoken", "ranks"))
    yield value("tokenizer.tiktoken.pattern", ranks, r"\w+|\W", "bytes", "tokenizer.pattern")
    special = {"<|endoftext|>": 310, "<s>": 301}
    yield value("tokenizer.tiktoken.special_tokens", ranks, special, "bytes", "tokenizer.special_tokens")
    backwards = Pair("tokenizer.tiktoken.special_tokens", "in another order", "same", ranks, _reverse("special_tokens"))
    yield backwards
    for key, base in (("huggingface", _on_hub), ("ids.decode.huggingface", decoding(_of_ids, _on_hub))):
        at = "tokenizer.decode.revision" if key.startswith("ids") else "tokenizer.revision"
        yield value(f"tokenizer.{key}.revision", base, OTHER_BRANCH, "bytes", at)
        yield value(f"tokenizer.{key}.revision", base, "main", "same", at)
    base = _of_ids
    yield value("tokenizer.ids.vocab_size", base, 1001, "bytes", "tokenizer.vocab_size")
    yield value("tokenizer.ids.eot_id", base, 7, "bytes", "tokenizer.eot_id")
    yield value("tokenizer.ids.bos_id", base, 5, "bytes", "tokenizer.bos_id")
    yield value("tokenizer.ids.name", base, "elsewhere", "bytes", "tokenizer.name")


def _on_hub(folder: Path) -> Fields:
    tokenizer = {"kind": "huggingface", "name": "org/model", "eot": "<|endoftext|>"}
    return plain()(folder) | {"tokenizer": tokenizer}


def _of_ids(folder: Path) -> Fields:
    return token_files(folder, "nanogpt")


def _reverse(name: str) -> Any:
    def change(_folder: Path, fields: Fields) -> None:
        fields["tokenizer"][name] = dict([*fields["tokenizer"][name].items()][::-1])

    return change


def _model_elsewhere(name: str, key: str, *inside: str) -> Any:
    def change(folder: Path, fields: Fields) -> None:
        (folder / "far").mkdir()
        (folder / name).rename(folder / "far" / f"other-{name}")
        _at(fields["tokenizer"], inside)[key] = str(folder / "far" / f"other-{name}")

    return change


def _at(fields: Fields, names: Sequence[str]) -> Fields:
    return _at(fields[names[0]], names[1:]) if names else fields


def _decoders() -> Iterator[Pair]:
    """Yield the pairs of a tokenizer that decodes imported ids."""
    key, base = "tokenizer.ids.decode.", partial(token_files, form="nanogpt")
    for kind, made in {"tiktoken": ranks, "huggingface": saved, "sentencepiece": pieces}.items():
        decoded = decoding(base, made)
        yield value(f"{key}{kind}.name", decoded, "elsewhere", "name", "tokenizer.decode.name")
        token = "<sep>" if kind == "sentencepiece" else "<s>"
        yield value(f"{key}{kind}.eot", decoded, token, "bytes", "tokenizer.decode.eot")
        yield value(f"{key}{kind}.bos", decoded, token, "bytes", "tokenizer.decode.bos")
        yield value(f"{key}{kind}.backend", decoded, "reference", "same", "tokenizer.decode.backend")
    byte = decoding(base, lambda folder: plain()(folder) | {"tokenizer": {"kind": "byte"}})
    yield value(f"{key}byte.name", byte, "bytes", "name", "tokenizer.decode.name")
    file = decoding(base, ranks)
    yield value(f"{key}tiktoken.pattern", file, r"\w+|\W", "bytes", "tokenizer.decode.pattern")
    special = {"<|endoftext|>": 310, "<s>": 301}
    yield value(f"{key}tiktoken.special_tokens", file, special, "bytes", "tokenizer.decode.special_tokens")
    for kind, field, made, name in (
        ("tiktoken", "ranks", ranks, "a.tiktoken"),
        ("huggingface", "path", saved, "tokenizer"),
        ("sentencepiece", "path", pieces, "tokenizer.model"),
    ):
        place = _model_elsewhere(name, field, "decode")
        yield Pair(f"{key}{kind}.{field}", "lies elsewhere", "same", decoding(base, made), place)


def decoding(base: Base, made: Base) -> Base:
    """Return a base of imported ids that the tokenizer of another one decodes."""

    def both(folder: Path) -> Fields:
        tokenizer = made(folder)["tokenizer"]
        (folder / "in").rename(folder / "unused")
        fields = base(folder)
        return fields | {"tokenizer": fields["tokenizer"] | {"decode": tokenizer}}

    return both


def key_pairs() -> Sequence[Pair]:
    """Return the pairs of keys of sources and tokenizers."""
    found = [pair for kind in _COLUMN_KINDS for pair in _columns(kind)]
    return [*found, *_csv(), *_text(), *_hugging_face(), *_tokens(), *_tokenizers(), *_decoders()]
