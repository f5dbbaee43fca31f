"""Encode with LitData: `optimize` with a generator for each file, TokensLoader and chunks of 64 MB, as its README does.

The order within a chunk is that of the files; LitData shuffles chunks and samples when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import litdata
import pyarrow.parquet
from numpy.typing import NDArray

from shared import encoder, encoding_package, read_job

_CHUNK_BYTES = "64MB"


def documents(path: str, vocabulary: str, eot: str) -> Iterator[NDArray[Any]]:
    """Yield the ids of each document of a file."""
    encode = encoder(vocabulary, eot)
    file = pyarrow.parquet.ParquetFile(path)
    for batch in file.iter_batches(columns=["text"], batch_size=1000):
        yield from encode(batch.column(0).to_pylist())


if __name__ == "__main__":
    job = read_job()
    litdata.optimize(
        fn=partial(documents, vocabulary=job.vocabulary, eot=job.eot),
        inputs=job.files,
        output_dir=str(job.output / "data"),
        num_workers=job.num_workers,
        chunk_bytes=_CHUNK_BYTES,
        item_loader=litdata.TokensLoader(),
    )
    chunks = json.loads((job.output / "data/index.json").read_text())["chunks"]
    job.answer(sum(chunk["dim"] for chunk in chunks), "litdata", encoding_package(job.vocabulary))
