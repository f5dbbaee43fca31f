"""What a build says of documents that differ from their source when they are encoded again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from tokenloom.errors import CheckError, EncoderMismatch
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.storage.work.records import Assignment, ShardRecord
from tokenloom.tasks.encoding.encoders import encoding_tokenizer
from tokenloom.tasks.planning.plan import ONLY_REFERENCE, SAMPLE_BYTES, BuildPlan
from tokenloom.tasks.running.steps import Job
from tokenloom.tasks.verification.sample import Difference, SampleJob, choose_documents, divide_by_input
from tokenloom.tokenizers.fast.tokenizer import FIRST_TEXTS, NO_CHECK

_CHANGED = "nothing was published; the file changed while the build ran: build again when it is complete"
_UNSTEADY = (
    "nothing was published; documents.transform returned another text for the same row: make it depend only on "
    "the text, change its version, and build again"
)
NEXT_STEP = "nothing was published; please report this, with build.json of a version that was"


def check_jobs(plan: BuildPlan, assignment: Assignment, records: Sequence[ShardRecord]) -> list[Job]:
    """Return the documents to encode again, for compare_documents; errors as choose_documents.

    They are encoded as the build did, since the reference might take as long as the rest of the build. It encodes some
    of them too, unless it has encoded a full sample of this build's text before.
    """
    encoding = ONLY_REFERENCE
    if assignment.encoders:
        check = NO_CHECK if plan.missing_bytes >= SAMPLE_BYTES else FIRST_TEXTS
        encoding = replace(plan.build.encoding, check=check)
    load = partial(encoding_tokenizer, replace(plan.build, encoding=encoding))
    shards = [StoredShard(plan.store, plan.version, record.entry) for record in records]
    jobs = []
    for documents in divide_by_input(choose_documents(shards, len(plan.inputs)), plan.inputs):
        file = plan.inputs[documents[0].input_index]
        job = SampleJob(file, documents, plan.build.rules.transform, plan.build.chat_of(file), load)
        jobs.append(Job(file.path, job, len(documents)))
    return jobs


def refuse_differences(plan: BuildPlan, assignment: Assignment, differences: Iterable[Difference]) -> None:
    """Raise the error for the first document that differs from its source.

    Raises:
        CheckError: a row is gone, or its text or ids differ.
        EncoderMismatch: ids differ, and a fast encoder may have given some of them.
    """
    for kind, document, source_place in differences:
        if kind == "gone":
            raise CheckError(f"{source_place}: gone since it was read; {_CHANGED}")
        if kind == "text":
            why = _CHANGED if plan.spec.documents.transform is None else _UNSTEADY
            raise CheckError(f"{source_place}: its text differs from {document.place}; {why}")
        differs = "ids or classes differ" if plan.has_classes else "ids differ"
        found = f"{source_place}: encoded again, its {differs} from {document.place}"
        if assignment.encoders:
            raise EncoderMismatch(found, tuple(assignment.encoders))
        raise CheckError(f"{found}; {NEXT_STEP}")
