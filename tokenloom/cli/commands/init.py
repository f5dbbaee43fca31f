"""`tokenloom init`: write a commented starter spec."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.errors import SpecError, TokenloomError

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
  # - {kind: text, path: "old/**/*.txt", leave_out: ["drafts/"]}
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
packs: []                           # {packing: best_fit, seq_len: 2048}: count these samples during the build

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


@dataclass(frozen=True)
class InitResult(Result):
    """Where the spec was written."""

    path: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "path",
        nargs="?",
        default="tokenloom.yaml",
        metavar="SPEC",
        help="the file to write; it must not exist (default: tokenloom.yaml)",
    )


def run(path: str, out: Output) -> InitResult:
    """Write a starter spec. An existing file is not changed."""
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(STARTER_SPEC)
    except FileExistsError as error:
        raise SpecError(f"{path}: the file exists; choose another name") from error
    except OSError as error:
        raise TokenloomError(f"{path}: can't be written: {error.strerror}") from error
    out.line(f"wrote {path}: set its sources, then run `tokenloom plan {path}` and `tokenloom build {path}`")
    return InitResult(path)
