"""The commented spec that `tokenloom init` writes."""

STARTER_SPEC = """\
# What to build. `tokenloom plan FILE` shows what it would read; `tokenloom build FILE` builds and publishes it.
# Relative paths count from this file's folder.

dataset: news                       # lower case letters, digits, '.', '_', '-'
store: ./store                      # the folder of the datasets

sources:                            # one or more; documents of all are shuffled together
  - {kind: parquet, path: data/*.parquet, text: text}
  # - {kind: jsonl, path: data/*.jsonl.gz, text: text}      # plain or .gz; text may be dotted: meta.body
  # - {kind: text, path: "data/**/*.txt"}                   # one document a file, UTF-8

tokenizer: {kind: tiktoken, name: gpt2}
# tokenizer: {kind: byte}                                   # UTF-8 bytes; needs no vocabulary

# The rest are the defaults.
documents:
  min_chars: 1                      # shorter texts are counted, not kept
  deduplicate: true                 # of equal texts the first stays
  max_bytes: 268435456              # a larger document is an error
splits: {train: 0.98, validation: 0.01, test: 0.01}         # by content: a document never changes its split
seed: 0                             # of the order of documents
shard_tokens: 100_000_000
"""
