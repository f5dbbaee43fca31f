"""An example for each section of the reference of the spec; tests validate every one.

Each is a part of a spec: with the keys of BASE, it is a whole one.
"""

from __future__ import annotations

BASE = """\
dataset: news
store: ./store
sources: [{kind: parquet, path: data/*.parquet}]
tokenizer: {kind: tiktoken, name: gpt2}
"""
EXAMPLES = {
    "sources": """\
sources:
  - kind: parquet
    name: articles                  # in `tokenloom inspect` and in the document table
    path: data/**/*.parquet
    leave_out: ["drafts/*", "*.tmp"]   # a folder, and names
    text: body.plain                # a field of a struct
    filter: 'language == "en" and score >= 0.5'
    id: url                         # found again with `tokenloom trace`
  - {kind: csv, path: old/*.csv.gz, header: false, columns: [label, text]}
  - {kind: text, path: "books/*.txt", separator: "<|endoftext|>"}
  - {kind: jsonl, path: s3://bucket/chats/*.jsonl.zst, messages: messages}   # conversations
  - {kind: huggingface, name: org/name, config: default, split: train, revision: main, take: 100000}
""",
    "tokenizer": """\
tokenizer:
  kind: huggingface
  name: org/model     # of the hub; or path: tokenizer.json
  revision: main      # the version records the commit
  bos: "<s>"          # before each document
""",
    "documents": """\
documents:
  min_chars: 200
  max_chars: 1_000_000
  exclude: removed.txt                  # content hashes, one per line: what must not be in the dataset
  on_error: skip                        # bad rows are counted and listed in quarantine.jsonl
  transform: {function: cleaning.rules:clean, version: "3"}
""",
    "chat": """\
sources: [{kind: jsonl, path: chats.jsonl, messages: messages, layout: sharegpt}]
chat:
  template: chatml.jinja                # without this key, the template of the tokenizer
  arguments: {enable_thinking: false}
  date: 2026-11-26                      # for templates that ask for the present day
  stop_tokens: ["<|im_end|>"]
""",
    "splits": """\
splits:
  - {name: train, share: 0.95}
  - {name: validation, share: 0.05}
# the same, shorter: splits: {train: 0.95, validation: 0.05}
""",
    "checks": """\
checks:
  min_documents: 10_000
  max_duplicate_share: 0.1              # 10 % of the rows read
  max_token_drift: 0.2                  # 20 % from the version that latest names
  no_doubled_bos: true
""",
    "runner": """\
runner: {kind: dask, address: "tcp://scheduler:8786", workers: 64}
# on this machine: runner: {kind: process, workers: 8}
""",
    "credentials": """\
store: s3://bucket/corpora
credentials:
  - {protocol: s3, block: corpora-s3}   # a Secret block of Prefect with {"key": "...", "secret": "..."}
""",
}
