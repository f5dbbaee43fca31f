"""Encode with Hugging Face datasets: load parquet, `map` in batches with processes, save to disk.

The order is that of the files, since `shuffle` of a dataset on disk only makes an index.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import datasets

from shared import Encode, encoder, encoding_package, read_job

# Once a process; not an argument of `map`, which would pickle it.
process_encoder = cache(encoder)


def encode_batch(batch: dict[str, list[str]], vocabulary: str, eot: str) -> dict[str, Any]:
    """Return the ids of a batch of documents."""
    encode: Encode = process_encoder(vocabulary, eot)
    return {"input_ids": encode(batch["text"])}


if __name__ == "__main__":
    job = read_job()
    options = {"split": "train", "cache_dir": str(job.output / "cache"), "num_proc": job.num_workers}
    texts = datasets.load_dataset("parquet", data_files=job.files, **options)
    encoded = texts.map(
        encode_batch,
        batched=True,
        num_proc=job.num_workers,
        remove_columns=texts.column_names,
        fn_kwargs={"vocabulary": job.vocabulary, "eot": job.eot},
    )
    encoded.save_to_disk(job.output / "data", num_proc=job.num_workers)
    num_tokens = sum(len(chunk.values) for chunk in encoded.data.column("input_ids").chunks)
    job.answer(num_tokens, "datasets", encoding_package(job.vocabulary))
