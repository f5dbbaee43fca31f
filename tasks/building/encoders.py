"""The tokenizer that encodes a partition: with the fast encoder that the build has chosen, or the reference library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from tokenloom.errors import EncoderMismatch
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import find_build_record, published_versions
from tokenloom.storage.work.records import remove_spills_of
from tokenloom.tasks.building.plan import Build
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import Job, Runner
from tokenloom.tokenizers import Tokenizer, load_job_tokenizer, load_once, pinned_fields
from tokenloom.tokenizers.fast.proofs import installed_library, keep_proof
from tokenloom.tokenizers.fast.tokenizer import (
    NO_CHECK,
    FastTokenizer,
    Router,
    ending_if_hung,
    left_to_reference,
)
from tokenloom.wording import counted

if TYPE_CHECKING:
    from tokenloom.tokenizers.fast.encoder import FastEncoder
    from tokenloom.tokenizers.fast.probe import SliceJob

_REPORT_AT = "https://github.com/tokenloom/tokenloom/issues"
_BATCH = 10  # slices of a probe, which take about a second


@lru_cache(maxsize=4)
def encoding_tokenizer(build: Build) -> Tokenizer:
    """Return the tokenizer of a build: with its fast encoder, or the reference; both give the same ids.

    A machine with other releases than those of the proof uses the reference. Each step counts the texts that it
    compares by itself. Raises TokenizerError as load_job_tokenizer.
    """
    reference = load_job_tokenizer(build.definition, build.tokenizer.fingerprint, build.tokenizer_files)
    proof = build.proof
    if proof is None or (proof.library, proof.reference) != (installed_library(), reference.backend):
        return reference
    encoder = _fast_encoder(reference)  # type: ignore[arg-type]  # it is hashable
    router = Router([*left_to_reference(), *proof.odd], encoder.spellings)
    return FastTokenizer(reference, encoder, router, build.check)


@lru_cache(maxsize=2)
def _fast_encoder(reference: Any) -> FastEncoder:  # a protocol can't say that it is hashable
    from tokenloom.tokenizers.fast.encoder import make_encoder  # late: its package may be missing

    return make_encoder(reference)


def preload_encoder(definition: Mapping[str, Any]) -> None:
    """Load the tokenizer of jobs to come.

    A model of the hub is left to its jobs, because only the plan knows its commit.

    Args:
        definition: as in a spec.

    Raises TokenizerError if the tokenizer can't be loaded.
    """
    loaded = definition.get("decode") or definition
    if loaded["kind"] == "huggingface" and loaded.get("name"):
        return
    definition = {**definition, **pinned_fields(definition)}
    load_once(definition)


def load_for_measuring(build: Build) -> Tokenizer:
    """Return the tokenizer of a build without its sample, to measure its speed; errors as load_job_tokenizer."""
    return encoding_tokenizer(replace(build, check=NO_CHECK))


def rejected(store: Store, error: EncoderMismatch) -> EncoderMismatch:
    """Delete the spills that wrong fast encoders left in work/, also of earlier builds; return the error for the user.

    Args:
        store: the dataset's store.
        error: says which ids differ, and the encoders that may have given them.
    """
    num_removed = remove_spills_of(store, error.encoders)
    records = {version: find_build_record(store, version) for version in published_versions(store)}
    versions = [version for version, record in records.items() if record and {*error.encoders} & {*record.encoders}]
    also = f"it also encoded {', '.join(versions)}: verify them with `tokenloom verify --deep`; " if versions else ""
    used = " and ".join(error.encoders)
    return EncoderMismatch(
        f"{error}. Nothing was published; {counted(num_removed, 'partition')} that {used} encoded "
        f"{'was' if num_removed == 1 else 'were'} deleted from {store.place('work')}; {also}set tokenizer: "
        f"{{backend: reference}} and build again, and please report this message at {_REPORT_AT}",
        error.encoders,
    )


def prove_encoder(definition: Mapping[str, Any], fingerprint: str, runner: Runner) -> None:
    """Compare gigatoken with the reference of a tokenizer in workers, and keep the proof.

    Args:
        definition: see load_tokenizer.
        fingerprint: of the tokenizer.
        runner: runs the comparisons.

    Raises:
        Unproven: gigatoken does not give the same ids.
        TokenizerError: as load_job_tokenizer.
        OSError: the proof can't be kept.
    """
    from tokenloom.tokenizers.fast.parts import parts_of  # late: the package may be missing
    from tokenloom.tokenizers.fast.probe import NUM_SLICES, prove

    def pool(function: Callable[[SliceJob], Any], jobs: Iterable[SliceJob]) -> list[Any]:
        return runner.each("prove", partial(_run, function), [Job(f"slice {job.index}", job) for job in jobs], _BATCH)

    load = partial(load_job_tokenizer, definition, fingerprint)
    reference = load()
    progress.report(progress.StepStarted("prove", NUM_SLICES, "slices", NUM_SLICES))
    keep_proof(prove(reference, parts_of(reference), load, pool))


def _run(function: Callable[[SliceJob], Any], job: SliceJob) -> Any:
    with ending_if_hung():
        result = function(job)
    progress.report(progress.Advanced(done=1))
    return result
