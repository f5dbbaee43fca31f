"""Check: read about 1,000 documents from their sources again, encode them again, and compare them with the shards.

The check runs beside the shuffle: each chooses the same documents on its own (checked_rows.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.chat.definition import ChatDefinition
from tokenloom.errors import CheckError, EncoderMismatch
from tokenloom.storage.formats.keys import equal_part
from tokenloom.storage.stores.store import Store
from tokenloom.storage.work.assignment import SpillEntry
from tokenloom.storage.work.shard_records import CheckedDocument, ShardRecord
from tokenloom.tasks.encoding.documents import document_encoder
from tokenloom.tasks.encoding.encoders import EncodingRules, encoding_tokenizer
from tokenloom.tasks.planning.inputs import InputFile, check_unchanged
from tokenloom.tasks.planning.plan import BuildPlan
from tokenloom.tasks.rows.checked_rows import CheckedRowFinder
from tokenloom.tasks.running import progress
from tokenloom.tasks.shuffling.merge import open_spill
from tokenloom.tasks.sources.naming import naming_source
from tokenloom.tasks.verification.reencoding import EncodedAgain, encode_again
from tokenloom.wording import counted

_CHANGED = "nothing was published; the file changed while the build ran: build again when it is complete"
_UNSTEADY = (
    "nothing was published; documents.transform returned another text for the same row: make it depend only on "
    "the text, change its version, and build again"
)
_PART_DOCUMENTS = 1_000_000  # the rows of so many are in memory at a time
_FEW_DOCUMENTS = 100  # a tenth of those chosen; a build that compares fewer says so
NEXT_STEP = "nothing was published; please report this, with build.json of a version that was"


@dataclass(frozen=True)
class CheckJob:
    """Documents of a partition to encode again by the rules of the build.

    `progress_tokens` is what the job counts in the progress of the shuffle. The rows lie within about `near_bytes` of
    the file. `chat` renders them if they are conversations.
    """

    store: Store
    spills: tuple[SpillEntry, ...]
    file: InputFile
    definition: dict[str, Any]
    tokenizer_fingerprint: str
    transform: str | None
    rules: EncodingRules
    progress_tokens: int
    near_bytes: int
    chat: ChatDefinition | None = None


@dataclass(frozen=True)
class PartitionCheck:
    """The documents of a partition that were encoded again; `input_index` is that of its file."""

    input_index: int
    documents: list[EncodedAgain]


def check_partition(job: CheckJob) -> PartitionCheck:
    """Encode the checked documents of a partition a second time.

    Raises:
        CheckError: a row no longer exists.
        WorkError: a spill is missing or damaged; its partition must be encoded again.
        EncoderMismatch: a fast encoder gives other ids than the reference.
    """
    rows = _find_rows(job)
    documents: list[EncodedAgain] = []
    if rows:
        tokenizer = encoding_tokenizer(job.definition, job.tokenizer_fingerprint, job.rules)
        with naming_source(job.file.source):
            again = document_encoder(tokenizer, job.chat)
            documents = list(encode_again(job.file, rows, job.transform, again, job.near_bytes))
    if num_gone := len(rows) - len(documents):
        check_unchanged(job.file)
        raise CheckError(f"{job.file.url}: {num_gone} of its rows are gone since they were read; {_CHANGED}")
    progress.report(progress.Advanced(done=job.progress_tokens))
    return PartitionCheck(job.spills[0].input_index, documents)


def _find_rows(job: CheckJob) -> list[int]:
    """Return the rows to encode again, sorted."""
    found: list[int] = []
    for entry in job.spills:
        spill, finder = open_spill(job.store, entry), CheckedRowFinder([entry.checked])
        for split_index, num_documents in enumerate(spill.num_documents):
            num_parts = -(-num_documents // _PART_DOCUMENTS)
            for part in range(num_parts):
                rows = spill.documents(split_index, *equal_part(part, num_parts))
                found += rows["row"][finder.find(rows, np.zeros(len(rows), np.uint32))].tolist()
    return sorted(found)


def compare_with_shards(plan: BuildPlan, records: Sequence[ShardRecord], checks: Iterable[PartitionCheck]) -> int:
    """Compare documents that were encoded again with the shards; return how many.

    Args:
        plan: the build's plan.
        records: the records of all shards.
        checks: of all partitions.

    Raises:
        CheckError: a text or ids differ, or a document was not encoded again.
        EncoderMismatch: ids differ, and a fast encoder may have given some of them.
    """
    again = {(check.input_index, document.row): document for check in checks for document in check.documents}
    num_compared = 0
    for record in records:
        for document in record.checked:
            found = again.get((document.input_index, document.row))
            _compare(plan, record, document, found)
            num_compared += 1
    return num_compared


def coverage_warnings(num_compared: int, num_documents: int) -> list[str]:
    """Return a line that says that few documents of a version were compared; nothing if enough were."""
    if num_compared >= min(_FEW_DOCUMENTS, num_documents):
        return []
    return [
        f"only {num_compared:,} of {counted(num_documents, 'document')} were compared with their source, because most "
        "of those chosen are duplicates or excluded; `tokenloom verify --deep` compares 1,000 of a version"
    ]


def _compare(plan: BuildPlan, record: ShardRecord, document: CheckedDocument, again: EncodedAgain | None) -> None:
    where = f"shard {record.name} at token {document.start}"
    if again is None:
        url = plan.inputs[document.input_index].url
        raise CheckError(f"{where}: its row {document.row} of {url} was not encoded again; {NEXT_STEP}")
    if again.content != document.content:
        check_unchanged(plan.inputs[document.input_index])
        why = _CHANGED if plan.spec.documents.transform is None else _UNSTEADY
        raise CheckError(f"{again.place}: its text differs from {where}; {why}")
    if again.ids_hash != document.ids_hash:
        differs = "ids or classes differ" if plan.has_classes else "ids differ"
        found = f"{again.place}: encoded again, its {differs} from {where}"
        if record.encoders:
            raise EncoderMismatch(found, record.encoders)
        raise CheckError(f"{found}; {NEXT_STEP}")
