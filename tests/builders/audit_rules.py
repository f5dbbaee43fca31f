"""Pairs of builds for the keys of a spec beside its sources and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.builders.audit import (
    Base,
    Fields,
    Pair,
    assign,
    chats,
    file_of_chats,
    of_spec,
    plain,
    rows,
    together,
    token_files,
    with_fields,
)
from tests.builders.audit_keys import value
from tests.builders.audit_marks import marked
from tests.builders.datasets import write_jsonl
from tests.builders.row_files import write_rows

# ---- the whole


def _whole() -> Iterator[Pair]:
    base = plain()
    yield value("dataset", base, "other", "bytes")
    yield value("store", base, "far/away", "same")
    yield value("limit", base, 5, "bytes")
    yield value("limit", with_fields(base, limit=5), 9, "bytes")
    yield value("seed", base, 1, "bytes")
    yield value("seed", base, 0, "same")
    yield value("shard_tokens", base, 60, "bytes")
    yield value("shard_tokens", base, 100_000_000, "same")
    yield value("partition_bytes", _large, 1_000_000, "same")
    yield value("anyway", base, True, "same")
    yield value("report", base, True, "same")
    yield value("credentials.protocol", base, [{"protocol": "s3", "block": "prod"}], "same", "credentials")
    other = [{"protocol": "s3", "block": "test"}]
    lent = with_fields(base, credentials=[{"protocol": "s3", "block": "prod"}])
    yield value("credentials.block", lent, other, "same", "credentials")
    three = {"train": 0.5, "validation": 0.25, "test": 0.25}
    split = with_fields(base, splits=three)
    yield value("splits.name", split, {"train": 0.5, "valid": 0.25, "test": 0.25}, "bytes", "splits")
    yield value("splits.share", split, {"train": 0.25, "validation": 0.5, "test": 0.25}, "bytes", "splits")
    swapped = {"train": 0.5, "test": 0.25, "validation": 0.25}
    yield Pair("splits.name", "in another order", "bytes", split, assign("splits", swapped))
    listed = [{"share": share, "name": name} for name, share in three.items()]
    yield Pair("splits.name", "as a list", "same", split, assign("splits", listed))
    yield Pair("sources.jsonl.name", "are in another order", "bytes", _two_sources, _swap_sources)
    for kind, workers in (("process", 2), ("dask", 1), ("ray", 1)):
        key = f"runner.{kind}."
        yield Pair(f"{key}workers", "are others", "same", base, assign("runner", {"kind": kind, "workers": workers}))
        yield Pair(f"{key}memory", "is another", "same", base, assign("runner", {"kind": kind, "memory": 2**27}))
        if kind != "process":
            yield Pair(f"{key}address", "is another", "same", base, assign("runner", {"kind": kind, "address": "a:1"}))


def _two_sources(folder: Path) -> Fields:
    fields = plain()(folder)
    write_rows(folder / "more" / "c.jsonl", rows(24))
    fields["sources"].append({"kind": "jsonl", "path": str(folder / "more" / "*.jsonl"), "name": "more"})
    return fields


def _swap_sources(_folder: Path, fields: Fields) -> None:
    fields["sources"].reverse()


def _large(folder: Path) -> Fields:
    words = [f"{i} " + "word " * 10_000 for i in range(50)]
    path = write_jsonl(folder / "in.jsonl", words)
    return {"sources": [{"kind": "jsonl", "path": str(path)}]}


def _checks() -> Iterator[Pair]:
    limits: Fields = {"min_documents": 1, "min_tokens": 1, "stop_token_learned": True, "no_doubled_bos": True}
    limits |= {f"max_{name}_share": 1.0 for name in ("duplicate", "quarantined", "filtered")}
    limits |= {f"max_{name}_drift": 1.0 for name in ("token", "document", "bytes_per_token", "length")}
    limits |= {"max_documents_without_target": 9, "min_learned_share": 0.01}
    for name, limit in limits.items():
        yield value(f"checks.{name}", chats(), limit, "same")


def _written() -> Iterator[Pair]:
    """Yield pairs of specs that say the same, written otherwise."""
    bases: dict[str, Base] = {"rows": marked, "conversations": chats(), "tokens": _olmo}
    for name, base in bases.items():
        yield Pair("documents.min_chars", f"{name}: every default is written out", "same", base, _with_defaults)
        yield Pair("documents.min_chars", f"{name}: keys are in another order", "same", base, _backwards)
    twice = together(_backwards, _with_defaults)
    yield Pair("documents.min_chars", "defaults, and another order", "same", marked, twice)


def _olmo(folder: Path) -> Fields:
    return token_files(folder, "olmo")


def _with_defaults(_folder: Path, fields: Fields) -> None:
    written = of_spec(fields).model_dump(mode="json", by_alias=True)
    del written["store"]
    fields.clear()
    fields.update(written)


def _backwards(_folder: Path, fields: Fields) -> None:
    reordered = _reordered(fields)
    fields.clear()
    fields.update(reordered)


def _reordered(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _reordered(inner) for name, inner in reversed(part.items())}
    return [_reordered(inner) for inner in part] if isinstance(part, list) else part


# ---- documents


def _documents() -> Iterator[Pair]:
    key, base = "documents.", plain()
    yield value(f"{key}min_chars", base, 8, "bytes")
    yield value(f"{key}min_chars", base, 1, "same")
    yield value(f"{key}max_chars", base, 9, "bytes")
    yield value(f"{key}deduplicate", base, False, "bytes")
    file = assign(f"{key}exclude", "{}/excluded.txt")
    yield Pair(f"{key}exclude", "names a file", "bytes", _excluding(base), file)
    excluding = with_fields(_excluding(base), documents={"exclude": "{}/excluded.txt"})
    yield Pair(f"{key}exclude", "the file lies elsewhere", "same", excluding, _exclusions_elsewhere)
    skipping = with_fields(_invalid, documents={"on_error": "skip"})
    yield value(f"{key}on_error", base, "skip", "name")
    yield value(f"{key}encoding_errors", skipping, "replace", "bytes")
    yield value(f"{key}max_bytes", with_fields(base, documents={"on_error": "skip"}), 30, "bytes")
    function = "tests.builders.audit_rules:shouted"
    transform = {"function": function, "version": "1"}
    yield value(f"{key}transform.function", base, transform, "bytes", "documents.transform")
    other = with_fields(base, documents={"transform": transform})
    yield value(f"{key}transform.function", other, "tests.builders.audit_rules:whispered", "bytes")
    yield value(f"{key}transform.version", other, "2", "name")
    yield value(f"{key}without_target", chats(), "keep", "bytes")
    yield value(f"{key}without_target", chats(), "drop", "same")


def shouted(text: str) -> str:
    """Return a text in capitals."""
    return text.upper()


def whispered(text: str) -> str:
    """Return a text in small letters, with a mark."""
    return text.lower() + "."


def _excluding(base: Base) -> Base:
    def made(folder: Path) -> Fields:
        (folder / "excluded.txt").write_text("\n".join(json.dumps(f"text {i} é") for i in (0, 7)))
        return base(folder)

    return made


def _exclusions_elsewhere(folder: Path, fields: Fields) -> None:
    (folder / "far").mkdir()
    (folder / "excluded.txt").rename(folder / "far" / "list.txt")
    fields["documents"]["exclude"] = str(folder / "far" / "list.txt")


def _invalid(folder: Path) -> Fields:
    (folder / "in").mkdir()
    (folder / "in" / "a.jsonl").write_bytes(b'{"text": "one"}\n{"text": "tw\xff"}\n')
    return {"sources": [{"kind": "jsonl", "path": str(folder / "in" / "*.jsonl")}]}


# ---- chat

_EXTENDED = """\
{{- extra | default('') }}{{ strftime_now('%Y') if dated else '' }}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def _extended(folder: Path) -> Fields:
    fields = file_of_chats(folder, template=_EXTENDED)
    fields["chat"] |= {"arguments": {"dated": True}, "date": "2025-01-01"}
    return fields


def _talks(folder: Path) -> Fields:
    return file_of_chats(folder, messages="chat")


def _chat() -> Iterator[Pair]:
    key, elsewhere = "chat.", _template_elsewhere
    yield Pair(f"{key}template", "lies elsewhere", "same", chats(), elsewhere)
    yield value(f"{key}template", chats(), "chatml", "bytes")
    named = with_fields(chats(), chat={"template": "chatml"})
    yield value(f"{key}template", named, "zephyr", "bytes")
    yield value(f"{key}arguments", _extended, {"dated": True, "extra": "more"}, "bytes")
    ordered = {"extra": "more", "dated": True}
    yield value(
        f"{key}arguments", with_fields(_extended, chat=_with_extra({"dated": True, "extra": "more"})), ordered, "same"
    )
    yield value(f"{key}date", _extended, "2026-01-01", "bytes")
    other_day = with_fields(chats(), chat=_with_extra({}))
    yield value(f"{key}date", other_day, "2026-01-01", "name")
    yield value(f"{key}stop_tokens", chats(), ["<|endoftext|>"], "bytes")
    yield value(f"{key}stop_tokens", with_fields(chats(), chat=_of_stop("<|im_end|>")), ["<|im_end|>"], "same")
    yield value(f"{key}special_tokens_in_content", _talks, "token", "bytes")
    yield value(f"{key}special_tokens_in_content", _talks, "text", "same")


def _with_extra(arguments: Fields) -> Fields:
    return {"template": "{}/chat.jinja", "arguments": arguments, "date": "2025-01-01"}


def _of_stop(token: str) -> Fields:
    return {"template": "{}/chat.jinja", "stop_tokens": token}


def _template_elsewhere(folder: Path, fields: Fields) -> None:
    (folder / "far").mkdir()
    (folder / "chat.jinja").rename(folder / "far" / "other.txt")
    fields["chat"]["template"] = str(folder / "far" / "other.txt")


def rule_pairs() -> Sequence[Pair]:
    """Return the pairs of the keys beside sources and tokenizers."""
    return [*_whole(), *_checks(), *_written(), *_documents(), *_chat()]
