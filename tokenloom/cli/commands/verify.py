"""`tokenloom verify`: read every byte of a version and list the damaged files."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from tokenloom.cli.argument_types import add_reference, add_source_spec, add_workers
from tokenloom.cli.display import showing_progress
from tokenloom.cli.output import Output
from tokenloom.cli.results import FAILED, NO, Json, JsonResult
from tokenloom.errors import SpecError
from tokenloom.wording import counted


@dataclass(frozen=True)
class VerifyResult(JsonResult):
    """What a verification found; `deep` says that documents had to be encoded again."""

    deep: bool

    @property
    def exit_code(self) -> int:
        """3 if files are damaged; 1 if no document could be encoded again although `deep` was set."""
        if self.value["damages"]:
            return NO
        return FAILED if self.deep and not self.value["documents_encoded_again"] else 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_reference(parser)
    parser.add_argument("--deep", action="store_true", help="encode about 1,000 documents again from their sources")
    add_source_spec(parser)
    add_workers(parser)


def run(reference: str, deep: bool, spec: str | None, workers: int | None, out: Output) -> VerifyResult:
    """Verify a version; `damages` of the result lists the damaged files.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        deep: encode about 1,000 documents again from their sources.
        spec: a YAML file that says where the sources are; None for those in build.json.
        workers: processes; None for one per core.
        out: prints the result.

    Raises:
        StoreError: the version does not exist, or the store can't be read.
        SpecError: the spec is wrong, or the version was not built from it.
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
    return VerifyResult(found, deep)


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
