"""`tokenloom verify`: read every byte of a version, and name every damaged file."""

from __future__ import annotations

from typing import Any

from tokenloom.cli.display import showing_progress
from tokenloom.cli.output import Json, print_line, printable
from tokenloom.errors import SpecError
from tokenloom.words import counted


def verify(reference: str, deep: bool, spec: str | None, workers: int | None, quiet: bool) -> Json:
    """Verify a version; `damages` of the result names the damaged files.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        deep: encode 1,000 documents again from their sources.
        spec: a YAML file that says where those are; None for what build.json says.
        workers: processes; None for one a core.
        quiet: print nothing.

    Raises:
        StoreError: there is no such version, or the store can't be read.
        SpecError: the spec is wrong, or not what the version was built from.
    """
    from tokenloom.flows.direct import verify_directly
    from tokenloom.tasks.running.workers import chosen_num_workers

    if spec and not deep:
        raise SpecError("--spec: it says where sources are, which only --deep reads; give both")
    with showing_progress():
        result = verify_directly(reference, deep, _loaded(spec) if spec else None, chosen_num_workers(workers))
    _print(quiet, result, deep)
    return result


def _loaded(spec: str) -> Any:
    from tokenloom.spec.spec_file import load_spec

    return load_spec(spec)


def _print(quiet: bool, result: Json, deep: bool) -> None:
    damages = result["damages"]
    print_line(quiet, f"{result['reference']}: {f'{len(damages):,} damaged' if damages else 'nothing is damaged'}")
    print_line(quiet, f"  {counted(result['files'], 'file')}, {counted(result['bytes'], 'byte')} read")
    if deep:
        print_line(quiet, f"  {counted(result['documents_encoded_again'], 'document')} encoded again")
    for row in damages:
        print_line(quiet, printable(f"{row['file']}: {row['what']}"))
    for step in dict.fromkeys(row["next_step"] for row in damages):
        files = [row["file"] for row in damages if row["next_step"] == step]
        print_line(quiet, printable(f"next, for {files[0]}{f' and {len(files) - 1} more' * (len(files) > 1)}: {step}"))
    for warning in result["warnings"]:
        print_line(quiet, printable(f"note: {warning}"))
