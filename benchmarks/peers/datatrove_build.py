"""Encode with datatrove: a task for each file encodes and shuffles it, then the merger shuffles them all.

The seeds are fixed, as they must be for an order that can be repeated. The merger runs in one process.
"""

from __future__ import annotations

from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger

from shared import Job, read_job


def build(job: Job) -> int:
    """Encode, shuffle and merge; return the number of tokens."""
    parts, merged = job.output / "parts", job.output / "data"
    reader = ParquetReader(str(Path(job.files[0]).parent), glob_pattern="*.parquet", read_metadata=False)
    tokenizer = DocumentTokenizer(str(parts), job.vocabulary, eos_token=job.eot, seed=0)
    encoding = LocalPipelineExecutor(
        [reader, tokenizer], tasks=len(job.files), workers=job.num_workers, logging_dir=str(job.output / "logs/encode")
    )
    merger = DocumentTokenizerMerger(str(parts), str(merged), save_filename="data", seed=0, progress=False)
    LocalPipelineExecutor([merger], depends=encoding, logging_dir=str(job.output / "logs/merge")).run()
    return int((merged / "data.ds.metadata").read_text().splitlines()[1])


if __name__ == "__main__":
    job = read_job()
    job.answer(build(job), "datatrove", "tokenizers")
