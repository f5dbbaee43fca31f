"""Patterns of the names in a store; no other name becomes part of a path, whoever wrote it."""

from __future__ import annotations

import re

#: the catalogue, a file beside the datasets of a store
CATALOGUE = "index.html"
#: of datasets and tags
NAME_PATTERN = re.compile(r"(?!(?:[0-9a-f]{16}|index\.html)\Z)[a-z][a-z0-9._-]{0,63}\Z")
#: of tokenizers: a label, or a model on the Hugging Face Hub
TOKENIZER_PATTERN = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,95}\Z")
VERSION_PATTERN = re.compile(r"[0-9a-f]{16}\Z")
SPLIT_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")
#: of the files that a manifest lists beside its shards: inputs.json, tokenizer/vocab.bpe
FILE_PATTERN = re.compile(r"(?:[a-z][a-z0-9_-]{0,31}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}\Z")
