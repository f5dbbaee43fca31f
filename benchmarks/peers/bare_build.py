"""Read parquet and encode it document by document in spawned processes, and do nothing else: no order, no files.

Each process takes the next file and reads one row group at a time. With tiktoken it calls `encode_ordinary` for each
document; with a tokenizer.json, `encode_batch_fast` for each row group. The ids of a document become a numpy array.
"""

from __future__ import annotations

import pyarrow.parquet

from shared import encoder, encoding_package, read_job, sum_of_files


def encode_file(path: str, vocabulary: str, eot: str) -> int:
    """Return the number of tokens of a file."""
    encode = encoder(vocabulary, eot)
    file = pyarrow.parquet.ParquetFile(path)
    num_tokens = 0
    for group in range(file.num_row_groups):
        texts = file.read_row_group(group, columns=["text"], use_threads=False).column(0).to_pylist()
        num_tokens += sum(map(len, encode(texts)))
    return num_tokens


if __name__ == "__main__":
    job = read_job()
    job.answer(sum_of_files(job, encode_file), encoding_package(job.vocabulary), "pyarrow")
