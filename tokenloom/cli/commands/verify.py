"""`tokenloom verify`: read every byte of a version and list the damaged files."""

from __future__ import annotations

from tokenloom.cli.arguments import Ref, SourceSpec, Workers
from tokenloom.cli.display import showing_progress
from tokenloom.cli.output import FAILED, NO, Json, Output, Result
from tokenloom.errors import SpecError
from tokenloom.wording import counted


def run(reference: Ref, *, deep: bool = False, spec: SourceSpec = None, workers: Workers = None, out: Output) -> Result:
    """Verify a version; `damages` of the result lists the damaged files.

    Args:
        deep: encode about 1,000 documents again from their sources
    """
    from tokenloom.flows.direct import verify_directly
    from tokenloom.tasks.running.workers import chosen_num_workers

    if spec and not deep:
        raise SpecError("--spec: only --deep reads sources; give both")
    given = None
    if spec:
        from tokenloom.spec.loading import load_spec  # importing it takes as long as reading a gigabyte

        given = load_spec(spec)
    with showing_progress():
        found = verify_directly(reference, deep, given, chosen_num_workers(workers))
    _print(out, found, deep)
    is_unchecked = deep and not found["documents_encoded_again"]
    return Result(found, NO if found["damages"] else FAILED if is_unchecked else 0)


def _print(out: Output, found: Json, deep: bool) -> None:
    damages = found["damages"]
    out.line(f"{found['reference']}: {f'{len(damages):,} damaged' if damages else 'nothing is damaged'}")
    out.line(f"  {counted(found['files'], 'file')}, {counted(found['bytes'], 'byte')} read")
    if deep:
        out.line(f"  {counted(found['documents_encoded_again'], 'document')} encoded again")
    for row in damages:
        out.line(f"{row['file']}: {row['what']}")
    for step in dict.fromkeys(row["next_step"] for row in damages):
        files = [row["file"] for row in damages if row["next_step"] == step]
        out.line(f"next, for {files[0]}{f' and {len(files) - 1} more' * (len(files) > 1)}: {step}")
    for warning in found["warnings"]:
        out.line(f"note: {warning}")
