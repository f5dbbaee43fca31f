"""Read parquet and encode it with gigatoken in spawned processes, and do nothing else: what a build can't do without.

Each process takes the next file, reads one row group at a time and encodes one document after another, which takes less
time than `encode_batch`. Ids are counted and dropped; the end-of-text ids are only counted.
"""

from __future__ import annotations

import pyarrow.parquet

from shared import gigatoken_tokenizer, read_job, sum_of_files


def encode_file(path: str, vocabulary: str, eot: str) -> int:
    """Return the number of tokens of a file."""
    tokenizer, _ = gigatoken_tokenizer(vocabulary, eot)
    file = pyarrow.parquet.ParquetFile(path)
    num_tokens = 0
    for group in range(file.num_row_groups):
        texts = file.read_row_group(group, columns=["text"], use_threads=False).column(0).to_pylist()
        num_tokens += sum(len(tokenizer.encode(text)) + 1 for text in texts)
    return num_tokens


if __name__ == "__main__":
    job = read_job()
    job.answer(sum_of_files(job, encode_file), "gigatoken", "pyarrow")
