"""What a build says of documents that differ from their source when they are encoded again."""

from __future__ import annotations

from collections.abc import Iterable

from tokenloom.errors import CheckError, EncoderMismatch
from tokenloom.storage.work.assignment import Assignment
from tokenloom.tasks.planning.plan import BuildPlan
from tokenloom.tasks.verification.sample import Difference

_CHANGED = "nothing was published; the file changed while the build ran: build again when it is complete"
_UNSTEADY = (
    "nothing was published; documents.transform returned another text for the same row: make it depend only on "
    "the text, change its version, and build again"
)
NEXT_STEP = "nothing was published; please report this, with build.json of a version that was"


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
