"""The kind of source that the name of a file implies, for the message about a file of another kind."""

from __future__ import annotations

from tokenloom.tasks.sources.files.compressed import SUFFIXES

_KINDS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrayrecord": "arrayrecord",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
}


def name_hint(url: str, *kinds: str) -> str:
    """Return the advice to read a file with the kind that its name implies, "" if it implies none or one of `kinds`.

    Example: ("news.jsonl.gz", "parquet") -> "; its name ends in .jsonl.gz: read it with kind: jsonl, or leave ..."
    """
    compressed = next((suffix for suffix in SUFFIXES if url.endswith(suffix)), "")
    plain = url.removesuffix(compressed)
    for suffix, named in _KINDS.items():
        if plain.endswith(suffix) and named not in kinds:
            return f"; its name ends in {suffix}{compressed}: read it with kind: {named}, or leave the file out"
    return ""
