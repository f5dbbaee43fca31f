"""Do the work of Megatron's tools/preprocess_data_fast.py: gigatoken over a file of JSON lines, into .bin and .idx.

One process holds the ids of the whole file, and gigatoken starts the threads. The end-of-text id follows each document
(`--append-eod`); the order is that of the file. Megatron's program also imports PyTorch and transformers, and copies
the index through Python's lists, so it takes longer than this one.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import awkward as ak
import gigatoken
import numpy as np
from numpy.typing import NDArray

from shared import Job, gigatoken_tokenizer, read_job

_CHUNK_DOCUMENTS = 1_000_000  # Megatron's default
_LEAST_OF_INT32 = 65_500  # ids, also Megatron's
_CODES = {np.dtype(np.uint16): 8, np.dtype(np.int32): 4}


def write_ids(path: Path, documents: ak.Array, eot_id: int, dtype: np.dtype[Any]) -> NDArray[np.int64]:
    """Write the ids of all documents; return how many each has, with its end-of-text id."""
    counts = [np.zeros(0, np.int64)]
    with path.open("wb") as file:
        for start in range(0, len(documents), _CHUNK_DOCUMENTS):
            chunk = documents[start : start + _CHUNK_DOCUMENTS]
            num_ids = np.asarray(ak.num(chunk))
            ids = np.asarray(ak.flatten(chunk), dtype)
            np.insert(ids, np.cumsum(num_ids), eot_id).tofile(file)
            counts.append(num_ids + 1)
    return np.concatenate(counts)


def write_index(path: Path, num_ids: NDArray[np.int64], dtype: np.dtype[Any]) -> None:
    """Write where each document begins and ends, in Megatron's format: a document is one sequence."""
    num_documents = len(num_ids)
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, _CODES[dtype], num_documents, num_documents + 1)
    starts = (np.cumsum(num_ids) - num_ids) * dtype.itemsize
    with path.open("wb") as file:
        file.write(header)
        num_ids.astype(np.int32).tofile(file)
        starts.tofile(file)
        np.arange(num_documents + 1).tofile(file)


def build(job: Job) -> int:
    """Encode the file and write both; return the number of tokens."""
    tokenizer, eot_id = gigatoken_tokenizer(job.vocabulary, job.eot)
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size < _LEAST_OF_INT32 else np.int32)
    documents = tokenizer.encode_files(gigatoken.JsonlFileSource([*job.files], field="text"), parallel=True)
    num_ids = write_ids(job.output / "data.bin", documents, eot_id, dtype)
    write_index(job.output / "data.idx", num_ids, dtype)
    return int(num_ids.sum())


if __name__ == "__main__":
    job = read_job()
    job.answer(build(job), "gigatoken", "awkward", "numpy")
