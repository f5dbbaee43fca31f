"""Choose the encoder of a partition: a fast one that is proven on this machine, or the reference library."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from tokenloom.errors import DistrustedEncoder, EncoderMismatch, ReencodingMismatch
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.distrust import distrust
from tokenloom.tasks.job_tokenizer import load_job_tokenizer
from tokenloom.tasks.running import progress
from tokenloom.tokenizers import Tokenizer
from tokenloom.tokenizers.fast.choice import Choice, backend_of, choose
from tokenloom.tokenizers.fast.tokenizer import FastTokenizer

if TYPE_CHECKING:
    from tokenloom.tasks.plan import BuildPlan

MIN_PROBED_BYTES = 50_000_000  # of text to encode, from which on a build starts a probe


@dataclass(frozen=True)
class EncodingRules:
    """How a build may encode: not with the `distrusted` libraries; `may_probe` if its text is worth a probe."""

    distrusted: frozenset[str] = frozenset()
    may_probe: bool = False


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
    tokenizer = _choose(reference, definition, rules)
    if not isinstance(tokenizer, FastTokenizer):
        yield reference
        return
    with _marking(spill_name) as was_left:
        if was_left:
            progress.report(progress.Message(_left_message(tokenizer)))
            yield reference
            return
        try:
            yield tokenizer
        except EncoderMismatch as error:
            raise _distrusted(store, [tokenizer.encoder], fingerprint, str(error)) from error


def _choose(reference: Tokenizer, definition: dict[str, Any], rules: EncodingRules) -> Tokenizer:
    """Return what encodes; start a probe if that may be a fast encoder later."""
    choice = _settled(canonical_json(definition), reference.fingerprint, rules.distrusted)
    if choice.is_pending:
        _settled.cache_clear()
        if rules.may_probe:
            _start_probe(reference, definition, choice)
    return choice.tokenizer


@lru_cache(maxsize=2)
def _settled(definition: bytes, fingerprint: str, distrusted: frozenset[str]) -> Choice:
    plain = json.loads(definition)
    return choose(load_job_tokenizer(plain, fingerprint), backend_of(plain), distrusted)


def _start_probe(reference: Tokenizer, definition: dict[str, Any], choice: Choice) -> None:
    from tokenloom.tokenizers.fast.probe_process import start_probe

    if start_probe(reference, definition):
        progress.report(
            progress.Message(
                f"{choice.reason}: a probe starts in the background and takes a minute or two; "
                f"{reference.backend} encodes until it is done"
            )
        )


def load_for_measuring(definition: dict[str, Any], fingerprint: str, rules: EncodingRules) -> Tokenizer:
    """Return what encodes, without its sample, to measure its speed; errors as load_job_tokenizer."""
    reference = load_job_tokenizer(definition, fingerprint)
    return choose(reference, backend_of(definition), rules.distrusted, compares=False).tokenizer


def encoder_line(plan: BuildPlan) -> str:
    """Return what encodes the documents of a build on this machine, as one line of text."""
    reference = load_job_tokenizer(plan.definition, plan.tokenizer.fingerprint)
    choice = choose(reference, backend_of(plan.definition), plan.distrusted)
    if choice.reason is None:
        return f"encoded by {choice.encoder}, which gives the ids of {plan.backend}"
    return f"encoded by {plan.backend}: {choice.reason}"


@contextmanager
def _marking(spill_name: str) -> Iterator[bool]:
    """Leave a mark on this machine while the block runs; yield whether a process that left one ended within its block.

    A library may crash or hang in native code. Whatever ended that process, the reference encodes the partition then.
    """
    folder = Path(default_cache_folder(), "tokenizers", "encoding")
    mark, lock = folder / spill_name, FileLock(folder / f"{spill_name}.lock")
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
        f"the process that encoded this partition with {tokenizer.encoder} ended early; {tokenizer.backend} encodes it"
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


def _distrusted(store: Store, encoders: Collection[str], fingerprint: str, why: str) -> DistrustedEncoder:
    """Mark encoders as distrusted, and return the error that makes the build use the reference."""
    for encoder in encoders:
        distrust(store, encoder, fingerprint, why)
    return DistrustedEncoder(f"{why}; {' and '.join(encoders)} is not used for this dataset from now on")
