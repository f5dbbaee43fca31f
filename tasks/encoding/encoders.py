"""Choose the encoder of a partition: a fast one that is proven on this machine, or the reference library."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from tokenloom.errors import DistrustedEncoder, EncoderMismatch, ReencodingMismatch, StoreError
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.distrust import distrust
from tokenloom.tasks.encoding.job_tokenizer import load_job_tokenizer, preload_tokenizer, provide_tokenizer
from tokenloom.tasks.encoding.reference_process import RemoteTokenizer
from tokenloom.tasks.running import progress
from tokenloom.tokenizers import Tokenizer, pinned_fields
from tokenloom.tokenizers.fast.choice import REFERENCE, Choice, backend_of, choose, is_probed, is_proven
from tokenloom.tokenizers.fast.libraries import libraries, library_of
from tokenloom.tokenizers.fast.tokenizer import NO_CHECK, SAMPLE, Check, FastTokenizer
from tokenloom.tokenizers.fast.verdict import check_cache
from tokenloom.tokenizers.identity import find_identity

if TYPE_CHECKING:
    from tokenloom.tasks.planning.plan import BuildPlan

_MIN_PROBED_BYTES = 50_000_000  # of text to encode, from which on a build starts a probe


@dataclass(frozen=True)
class EncodingRules:
    """How a build may encode: not with the `distrusted` libraries; `may_probe` if its text is worth a probe.

    `check` says what the reference encodes, too. `version` is the build's, because each build checks texts of its own.
    """

    version: str = ""
    distrusted: frozenset[str] = frozenset()
    may_probe: bool = False
    check: Check = SAMPLE


ANY_ENCODER = EncodingRules()


@contextmanager
def encoding(
    store: Store, definition: dict[str, Any], fingerprint: str, rules: EncodingRules, spill_name: str
) -> Iterator[Tokenizer]:
    """Yield what encodes the documents of a partition in the block; all that it may be give the same ids.

    Args:
        store: the dataset's store, where an encoder that gives other ids is marked as distrusted.
        definition: see load_tokenizer.
        fingerprint: of the tokenizer that the job was made for.
        rules: how the build may encode.
        spill_name: the name of the partition's spills.

    Raises:
        TokenizerError: as load_job_tokenizer.
        DistrustedEncoder: the block found that the encoder gives other ids.
    """
    reference = load_job_tokenizer(definition, fingerprint)
    choice = _choice(definition, fingerprint, rules, rules.check)
    if choice.pending and is_probed(reference, choice.pending):
        _choose.cache_clear()
        _choose_checking.cache_clear()
        choice = _choice(definition, fingerprint, rules, rules.check)
    if choice.pending and rules.may_probe:
        encoder = choice.encoder or reference.backend
        _start_probe(canonical_json(definition), fingerprint, choice.pending.NAME, encoder, rules.version)
    distrusting_it = _distrusting_one(store, str(choice.encoder), fingerprint)
    with _unless_left(choice.tokenizer, reference, spill_name) as tokenizer, distrusting_it:
        yield tokenizer


@contextmanager
def encoding_again(
    store: Store,
    definition: dict[str, Any],
    fingerprint: str,
    rules: EncodingRules,
    encoders: Collection[str],
    name: str,
) -> Iterator[Tokenizer]:
    """Yield what encodes documents of a build for a second time in the block, to check them.

    Args:
        store: see encoding.
        definition: see load_tokenizer.
        fingerprint: of the tokenizer of the build.
        rules: how the build may encode; the reference library encodes only what `rules.check` says, because it might
            take as long as the rest of the build.
        encoders: the fast encoders that encoded some of the build. They encode all of the documents.
        name: of these documents, for a file name.

    Raises:
        TokenizerError: as load_job_tokenizer.
        DistrustedEncoder: the block found that the encoder gives other ids.
    """
    reference = load_job_tokenizer(definition, fingerprint)
    choice = _choice(definition, fingerprint, rules, rules.check)
    fastest = choice.tokenizer if choice.encoder in encoders else reference
    distrusting_it = _distrusting_one(store, str(choice.encoder), fingerprint)
    with _unless_left(fastest, reference, name) as tokenizer, distrusting_it:
        yield tokenizer


def preload_encoder(definition: Mapping[str, Any]) -> None:
    """Load the tokenizer of jobs to come and, as far as that starts no thread, its fast encoder.

    A model of the hub is left to its jobs, because only the plan knows its commit.

    Args:
        definition: as in a spec.

    Raises TokenizerError if the tokenizer can't be loaded.
    """
    if definition["kind"] == "huggingface" and definition.get("name"):
        return
    definition = {**definition, **pinned_fields(definition)}
    tokenizer = _start_reference(definition) or preload_tokenizer(definition)
    if _has_forkable_encoder(tokenizer):
        _choose(canonical_json(definition), tokenizer.fingerprint, frozenset())


def _start_reference(definition: Mapping[str, Any]) -> Tokenizer | None:
    """Start the process of a reference that workers need for few texts; None if it encodes all, or can't be started."""
    found = find_identity(definition) if definition["kind"] == "huggingface" else None
    if found is None or backend_of(definition) == REFERENCE:
        return None
    tokenizer = RemoteTokenizer(definition, *found)
    if not _has_forkable_encoder(tokenizer) or not tokenizer.start():
        return None
    provide_tokenizer(definition, tokenizer)
    return tokenizer


def _has_forkable_encoder(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer has a proven fast encoder that starts no thread."""
    proven = next((library for library in libraries()[0] if is_proven(tokenizer, library)), None)
    return proven is not None and not proven.starts_thread(tokenizer)


def _choice(definition: dict[str, Any], fingerprint: str, rules: EncodingRules, check: Check) -> Choice:
    return _choose_checking(canonical_json(definition), fingerprint, rules, check)


@lru_cache(maxsize=4)
def _choose_checking(definition: bytes, fingerprint: str, rules: EncodingRules, check: Check) -> Choice:
    """Return what encodes, with a count of checked texts of its own for each build and step."""
    choice = _choose(definition, fingerprint, rules.distrusted)
    if isinstance(choice.tokenizer, FastTokenizer):
        return replace(choice, tokenizer=choice.tokenizer.checking(check))
    return choice


@lru_cache(maxsize=2)
def _choose(definition: bytes, fingerprint: str, distrusted: frozenset[str]) -> Choice:
    plain = json.loads(definition)
    return choose(load_job_tokenizer(plain, fingerprint), backend_of(plain), distrusted)


@contextmanager
def _unless_left(tokenizer: Tokenizer, reference: Tokenizer, name: str) -> Iterator[Tokenizer]:
    """Yield a tokenizer, or else the reference if a process that encoded the documents `name` ended early."""
    if not isinstance(tokenizer, FastTokenizer):
        yield tokenizer
        return
    with _marking(name) as was_left:
        if was_left:
            progress.report(progress.Message(_left_message(tokenizer)))
        yield reference if was_left else tokenizer


def may_probe(plan: BuildPlan) -> bool:
    """Return whether a build encodes so much that it is worth a probe."""
    return plan.spec.limit is None and plan.missing_bytes >= _MIN_PROBED_BYTES


def probe_warnings(plan: BuildPlan) -> list[str]:
    """Return a line that says why a build can't probe the fast encoder that it needs; nothing if it can."""
    if not may_probe(plan) or backend_of(plan.definition) == REFERENCE:
        return []
    try:
        check_cache()
    except StoreError as error:
        choice = planned_choice(plan)
        if choice.pending or str(error) in str(choice.reason):
            encoder = choice.encoder or plan.backend
            return [f"no faster library than {encoder} can be probed on this machine: {error}"]
    return []


@lru_cache(maxsize=16)  # a process starts it once for each build, even if it ends at once
def _start_probe(definition: bytes, fingerprint: str, library: str, encoder: str, version: str) -> None:
    from tokenloom.tokenizers.fast.probe_process import start_probe

    plain = json.loads(definition)
    reference = load_job_tokenizer(plain, fingerprint)
    if start_probe(reference, library_of(library), plain):
        progress.report(
            progress.Message(
                f"{library} has not been probed on this machine: a probe starts in the background and takes a "
                f"minute or two; {encoder} encodes until it is done"
            )
        )


def load_for_measuring(definition: dict[str, Any], fingerprint: str, rules: EncodingRules) -> Tokenizer:
    """Return what encodes, without its sample, to measure its speed; errors as load_job_tokenizer."""
    reference = load_job_tokenizer(definition, fingerprint)
    return choose(reference, backend_of(definition), rules.distrusted, NO_CHECK).tokenizer


def planned_choice(plan: BuildPlan) -> Choice:
    """Return what encodes the documents of a build on this machine."""
    reference = load_job_tokenizer(plan.definition, plan.tokenizer.fingerprint)
    return choose(reference, backend_of(plan.definition), plan.distrusted)


def encoder_line(choice: Choice) -> str:
    """Return what encodes, as one line of text."""
    reference = choice.tokenizer.backend
    if choice.encoder is None:
        return f"encoded by {reference}: {choice.reason}"
    why = f" ({choice.reason})" if choice.reason else ""
    return f"encoded by {choice.encoder}, which gives the ids of {reference}{why}"


@contextmanager
def _marking(name: str) -> Iterator[bool]:
    """Leave a mark on this machine while the block runs; yield whether a process that left one ended within its block.

    A library may crash or hang in native code. Whatever ended that process, the reference encodes the partition then.
    """
    folder = Path(default_cache_folder(), "tokenizers", "encoding")
    mark, lock = folder / name, FileLock(folder / f"{name}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        was_left = mark.exists()
        mark.touch()
    except (OSError, Timeout):  # without a cache, or beside another build, a retry meets the same encoder
        lock.release()
        yield False
        return
    try:
        yield was_left
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()
            Path(lock.lock_file).unlink()
        lock.release()


def _left_message(tokenizer: FastTokenizer) -> str:
    return (
        f"a worker was killed or crashed while encoding with {tokenizer.encoder}; encoding its partition with "
        f"{tokenizer.backend} instead"
    )


@contextmanager
def distrusting(store: Store, encoders: Collection[str], fingerprint: str) -> Iterator[None]:
    """Mark the fast encoders that encoded a version as distrusted if the block finds that ids differ.

    Raises:
        DistrustedEncoder: they do, and some were encoded by one of `encoders`.
        ReencodingMismatch: they do, and the reference encoded them all.
    """
    try:
        yield
    except ReencodingMismatch as error:
        if not encoders:
            raise
        raise _distrusted(store, encoders, fingerprint, error.found) from error


@contextmanager
def _distrusting_one(store: Store, encoder: str, fingerprint: str) -> Iterator[None]:
    """Mark a fast encoder as distrusted if the block, which encodes with it, finds that its ids differ."""
    try:
        yield
    except EncoderMismatch as error:
        raise _distrusted(store, [encoder], fingerprint, str(error)) from error


def _distrusted(store: Store, encoders: Collection[str], fingerprint: str, why: str) -> DistrustedEncoder:
    """Mark encoders as distrusted, and return the error that makes the build use the reference."""
    for encoder in encoders:
        distrust(store, encoder, fingerprint, why)
    verb = "is" if len(encoders) == 1 else "are"
    return DistrustedEncoder(f"{why}; {' and '.join(sorted(encoders))} {verb} not used for this dataset from now on")
