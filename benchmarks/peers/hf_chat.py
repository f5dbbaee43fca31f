"""Render, encode and mask conversations with transformers in `datasets.map`, and save to disk.

    python hf_chat.py FOLDER_OF_TOKENIZER TEMPLATE WORKERS OUTPUT FILES...

Each row is rendered and encoded on its own, as TRL's SFTTrainer does; a batch of rows takes as long. The template says
by `{% generation %}` what the assistant writes. Writes answer.json: the tokens with an end-of-text token for each
conversation, those that are learned, and the versions of the packages.
"""

from __future__ import annotations

import argparse
import json
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import transformers


@cache  # once a process; not an argument of `map`, which would pickle it
def process_tokenizer(folder: str) -> Any:
    """Return the tokenizer of a folder."""
    return transformers.AutoTokenizer.from_pretrained(folder)


def encode_row(row: dict[str, Any], folder: str, template: str) -> dict[str, Any]:
    """Return the ids of a conversation, and which of them the assistant writes."""
    encoded = process_tokenizer(folder).apply_chat_template(
        row["messages"],
        tools=json.loads(row["tools"]) if row["tools"] else None,
        chat_template=template,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return {"input_ids": encoded["input_ids"], "assistant_masks": encoded["assistant_masks"]}


def main() -> None:
    """Do the job on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("template", type=Path)
    parser.add_argument("num_workers", type=int)
    parser.add_argument("output", type=Path)
    parser.add_argument("files", nargs="+")
    job = parser.parse_args()
    options = {"split": "train", "cache_dir": str(job.output / "cache"), "num_proc": job.num_workers}
    rows = datasets.load_dataset("parquet", data_files=job.files, **options)
    encoded = rows.map(
        encode_row,
        num_proc=job.num_workers,
        remove_columns=rows.column_names,
        fn_kwargs={"folder": job.folder, "template": job.template.read_text(encoding="utf-8")},
    )
    encoded.save_to_disk(job.output / "data", num_proc=job.num_workers)
    columns = {name: encoded.data.column(name).chunks for name in ("input_ids", "assistant_masks")}
    num_tokens = sum(len(chunk.values) for chunk in columns["input_ids"]) + len(encoded)
    num_learned = sum(chunk.values.sum().as_py() for chunk in columns["assistant_masks"])
    versions = {package: version(package) for package in ("datasets", "transformers", "tokenizers")}
    answer = {"tokens": num_tokens, "learned": num_learned, "versions": versions}
    (job.output / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
