"""`tokenloom init`: write a commented spec that reads given files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from tokenloom.cli.arguments import Argument
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.console import printable_line
from tokenloom.errors import SpecError, TokenloomError
from tokenloom.spec.wildcards import escaped

STARTER_SPEC = """\
# What to build. `tokenloom plan FILE` shows what it would read; `tokenloom build FILE` builds and publishes it.
# Relative paths start from this file's folder. docs/ is https://tokenloom.github.io/tokenloom/.

dataset: news                       # lower-case letters, digits, '.', '_', '-'
store: ./store                      # the folder that holds the datasets

sources:                            # one or more; the documents of all are shuffled together
  - {kind: parquet, path: data/*.parquet, text: text}
  # - {kind: parquet, path: data/*.parquet, text: meta.body, id: url, filter: 'language == "en" and score >= 0.5'}
  # - {kind: jsonl, path: data/*.jsonl.zst, text: text}     # plain, .gz, .bz2, .zst; or a JSON array
  # - {kind: text, path: "data/**/*.txt"}                   # one document per file, or separator: "<|endoftext|>"
  # - {kind: huggingface, name: org/name, config: default, split: train, revision: main}
  # - {kind: text, path: "old/**/*.txt", leave_out: ["drafts/*"]}
  # - {kind: csv, path: data/*.csv, header: false, columns: [label, title, text]}
  # - {kind: jsonl, path: chats.jsonl, messages: messages}   # docs/guides/conversations.md
  # and arrow (datasets.save_to_disk), arrayrecord: docs/guides/inputs.md

tokenizer: {kind: tiktoken, name: gpt2}
# tokenizer: {kind: byte}                                   # UTF-8 bytes; needs no vocabulary
# tokenizer: {kind: huggingface, name: org/model}           # on the hub; or path: tokenizer.json, or its folder
# tokenizer: {kind: tiktoken, name: llama3, ranks: tokenizer.model}
# tokenizer: {kind: sentencepiece, path: tokenizer.model}

# chat: {template: tokenizer}                               # renders conversations; or the file of a Jinja template

# All keys below have their default values.
documents:
  min_chars: 1                      # shorter texts are counted but not kept
  deduplicate: true                 # the first of identical texts is kept
  on_error: fail                    # skip: leave out bad rows and list them in quarantine.jsonl
  encoding_errors: fail             # replace: U+FFFD for bytes that are not UTF-8
  max_bytes: 268435456              # a larger document is a bad row
splits: {train: 0.98, validation: 0.01, test: 0.01}         # by content: a document never changes its split
seed: 0                             # of the order of the documents
shard_tokens: 100_000_000

# What a finished version must hold to be published (docs/guides/checks.md). None of these is set by default.
# checks:
#   min_documents: 1000
#   min_tokens: 1_000_000
#   max_duplicate_share: 0.1        # of the rows read; also max_quarantined_share, max_filtered_share
#   max_token_drift: 0.2            # 20 % from the version that latest names; also max_document_drift
#   max_bytes_per_token_drift: 0.05
#   max_length_drift: 0.1           # distance of the histograms of document lengths, from 0 to 1
#   stop_token_learned: true        # of conversations; also no_doubled_bos: true
#   min_learned_share: 0.05         # also max_documents_without_target
"""


_SPEC_ENDS = (".yaml", ".yml")
_COMMENT_COLUMN = 36
_CHAT = "chat: {template: chatml}                                  # or llama3, ...; tokenizer: the one of a model"


def run(files: Annotated[Sequence[str], Argument("FILES")], *, out: Output) -> Result:
    """Write a spec that reads some files; without any, a starter spec. An existing spec is not changed.

    Args:
        files: files, folders and patterns to read; a name that ends in .yaml is the spec to write, which must not exist
            (default: tokenloom.yaml)
    """
    *others, path = [name for name in files if name.endswith(_SPEC_ENDS)] or ["tokenloom.yaml"]
    if others:
        raise SpecError(f"{others[0]} and {path}: two specs to write; name one")
    if Path(path).exists():
        raise SpecError(f"{path}: the file exists; choose another name")
    inputs = [name for name in files if name != path]
    text, sources = _spec_of(inputs, path, out) if inputs else (STARTER_SPEC, [])
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise SpecError(f"{path}: the file exists; choose another name") from error
    except OSError as error:
        raise TokenloomError(f"{path}: can't be written: {error.strerror}") from error
    first = "" if inputs else "set its sources, then "
    out.line(f"wrote {path}: {first}run `tokenloom plan {quote(path)}` and `tokenloom build {quote(path)}`")
    return Result({"path": path, "sources": sources})


def _spec_of(inputs: list[str], path: str, out: Output) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a spec that reads some files, and its sources."""
    from tokenloom.tasks.planning.proposal import propose

    proposals, notes = propose(inputs)
    sources = [one.source | {"path": _relative(one.source["path"], Path(path).absolute().parent)} for one in proposals]
    lines = []
    for one, source in zip(proposals, sources, strict=True):
        lines.append(f"  - {_yaml(source)}" + (f"  # {printable_line(one.note)}" if one.note else ""))
        out.line(f"{source['kind']} {source['path']}: {one.files}{_described(source)}{one.note and f' ({one.note})'}")
    for note in notes:
        out.line(note)
    comments = [f"  # {printable_line(note)}" for note in notes]
    before, _, rest = STARTER_SPEC.partition("sources:")
    text = "\n".join([f"{_named(before, inputs, path)}sources:", *lines, *comments, rest[rest.index("\ntokenizer:") :]])
    if any("messages" in source for source in sources):
        text = re.sub("(?m)^# chat: .*$", _CHAT, text)
    return text, sources


def _named(before: str, inputs: list[str], path: str) -> str:
    """Return the start of a spec with a name for the dataset: that of the spec, or of the first file or folder."""
    named = Path(path).stem if Path(path).name != "tokenloom.yaml" else Path(inputs[0].split("*")[0]).absolute().name
    name = re.sub("[^a-z0-9._-]+", "-", named.split(".")[0].lower()).lstrip("0123456789._-")[:64].rstrip("-")
    return re.sub("dataset: news *", f"dataset: {name or 'data'}".ljust(_COMMENT_COLUMN - 1) + " ", before)


def _relative(path: str, folder: Path) -> str:
    """Return a path relative to the folder of the spec, if it is in it."""
    start = f"{escaped(str(folder))}/"
    return path.removeprefix(start) if "://" not in path else path


def _yaml(source: dict[str, Any]) -> str:
    import yaml

    options = {"kind": source["kind"], "path": source["path"]} | source
    return yaml.safe_dump(options, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9).strip()


def _described(source: dict[str, Any]) -> str:
    """Return what a source takes from a row: ", text body, id url"."""
    return "".join(
        f", {key} {source[key]!r}" for key in ("text", "messages", "layout", "id", "separator") if key in source
    )
