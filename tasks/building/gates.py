"""Gates: compare a finished version with the limits of its spec's `checks`, and with the version before it.

All comparisons are exact: a limit is the decimal fraction that the spec spells. A drift that can't be measured passes,
and its result says why: the first version of a dataset has no other to be compared with. A version that exists is
evaluated from the figures in its manifest and build.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from itertools import zip_longest
from shlex import quote
from typing import TYPE_CHECKING

import numpy as np

from tokenloom.errors import GateFailed, message_of
from tokenloom.storage.formats.classes import PLAIN_TEXT, ROLE_BITS, learned_classes
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.statistics import ChatCounts, added
from tokenloom.storage.formats.version_files import BuildRecord, GateResult
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import is_published
from tokenloom.storage.versions.tags import version_before
from tokenloom.tasks.building.version_facts import VersionFacts, facts_of, sum_by_class
from tokenloom.wording import counted

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec.build_spec import BuildSpec

_MAX_DIGITS = 15


class _NotCompared(Exception):
    """A drift can't be measured; the message says why."""


def evaluate_gates(facts: VersionFacts, tag: str, limits: Mapping[str, float]) -> list[GateResult]:
    """Return the result of every gate that is set, in the order of the spec's fields.

    A drift is not compared if the tag names the version itself.

    Args:
        facts: of the version.
        tag: names the version that drift is measured from.
        limits: by the name of the gate, see tokenloom.spec.blocks.Checks.

    Raises FormatError if the tag's log or the manifest of the version it names is damaged.
    """
    reference = _version_before(facts, tag) if limits.keys() & _DRIFTS.keys() else ""
    return gate_results(limits, facts, reference)


def gate_results(limits: Mapping[str, float], found: VersionFacts, reference: VersionFacts | str) -> list[GateResult]:
    """Return the result of every gate that is set.

    Args:
        limits: by the name of the gate.
        found: the version to be published.
        reference: the version that drift is measured from, or why there is none.
    """
    held = found.manifest
    results = [_minimum(name, limits[name], measure(held)) for name, measure in _MINIMA.items() if name in limits]
    results += [_share(name, limits[name], count(held), held) for name, count in _SHARES.items() if name in limits]
    results += [_drift(name, limits[name], found, reference) for name in _DRIFTS if name in limits]
    results += [_of_chats(name, limits[name], found) for name in _CHAT_GATES if name in limits]
    return results


def _of_chats(name: str, limit: float, found: VersionFacts) -> GateResult:
    """Return the result of a gate that only versions with conversations can fail."""
    has_masks = name == "min_learned_share" and found.conversations is not None  # of imported tokens
    if "chat" not in found.manifest.spec and not has_masks:
        return _not_compared(name, "the version has no conversations")
    if found.build is None:
        return _not_compared(name, f"what was rendered for {found.version} is not known")
    return _CHAT_GATES[name](name, limit, found.build)


def _not_compared(name: str, why: str) -> GateResult:
    return GateResult(name, "", f"not compared: {why}", passed=True, compared=False)


def failed(results: Sequence[GateResult]) -> list[GateResult]:
    """Return the gates that did not pass."""
    return [result for result in results if not result.passed]


def gate_failure(facts: VersionFacts, results: Sequence[GateResult], spec: BuildSpec) -> GateFailed:
    """Return the error for a version that did not pass: each failed gate, its line in the spec, and the next step."""
    places = dict.fromkeys(filter(None, (spec.place_of(f"checks.{gate.name}") for gate in failed(results))))
    where = f" ({', '.join(places)})" if places else ""
    message = (
        f"{facts.reference}: {_failures(results, ', so nothing was published')}. Correct the data, or the limit in "
        f"`checks` of the spec{where}, and build again: finished work is kept"
    )
    return GateFailed(message, facts.version, [asdict(result) for result in results])


def published_failure(facts: VersionFacts, tag: str, results: Sequence[GateResult]) -> GateFailed:
    """Return the error for a version that is published already, but does not pass: no tag moves."""
    store, reference, entry = facts.store, facts.reference, tags.newest(facts.store, tag)
    if entry is not None and entry.version == facts.version:
        where = f"{tag} names it"
        named = "" if tag == tags.LATEST else f" --tag {quote(tag)}"
        back = f", or let {tag} name the version before: `tokenloom rollback {quote(str(store.root))}{named}`"
        before = version_before(tags.log(store, tag, {}))
        next_step = back if before is not None and is_published(store, before) else ""
    else:
        where = f"{tag} was not moved to it"
        next_step = f", or accept it as it is: `tokenloom tag {quote(reference)} {tag}`"
    message = (
        f"{reference} was published before, and {where}: {_failures(results)}. Correct the data or `checks` and build "
        f"again{next_step}"
    )
    return GateFailed(message, facts.version, [asdict(result) for result in results])


def gate_line(gate: GateResult) -> str:
    """Return the result of a gate."""
    if not gate.compared:
        return f"check {gate.name}: {gate.found}"
    result = "passed" if gate.passed else "failed"
    return f"check {gate.name} {result}: expected {gate.expected}, found {gate.found}"


def _version_before(facts: VersionFacts, tag: str) -> VersionFacts | str:
    """Return the version that `tag` names, or why there is nothing to compare with."""
    entry = tags.newest(facts.store, tag)
    if entry is None:
        return f"{tag} names no version"
    if entry.version == facts.version:
        return f"{tag} names this version"
    if not is_published(facts.store, entry.version):
        return f"{entry.version}, which {tag} names, is gone"
    return facts_of(facts.store, entry.version)


def _failures(results: Sequence[GateResult], consequence: str = "") -> str:
    found = "; ".join(f"{gate.name}: expected {gate.expected}, found {gate.found}" for gate in failed(results))
    return f"{len(failed(results))} of {counted(len(results), 'check')} failed{consequence}: {found}"


def _minimum(name: str, limit: float, found: int) -> GateResult:
    return GateResult(name, f">= {limit:,}", f"{found:,}", found >= limit)


def _share(name: str, limit: float, num_rows: int, found: Manifest) -> GateResult:
    total = found.rows.read
    return _at_most(name, limit, Fraction(num_rows, max(1, total)), f"{num_rows:,} of {counted(total, 'row')} read")


def _drift(name: str, limit: float, found: VersionFacts, reference: VersionFacts | str) -> GateResult:
    try:
        if isinstance(reference, str):
            raise _NotCompared(reference)
        value, what = _DRIFTS[name](reference, found)
    except _NotCompared as why:
        return GateResult(name, f"<= {limit!r}", f"not compared: {message_of(why)}", passed=True, compared=False)
    return _at_most(name, limit, value, f"{what} since {reference.version}")


def _at_most(name: str, limit: float, value: Fraction, what: str) -> GateResult:
    exact = Fraction(repr(limit))
    return GateResult(name, f"<= {limit!r}", f"{_shown(value, exact)} ({what})", passed=value <= exact)


def _shown(value: Fraction, limit: Fraction) -> str:
    """Return a value with as few digits as show on which side of the limit it is, but at least four."""
    for digits in range(4, _MAX_DIGITS):
        text = f"{float(value):.{digits}g}"
        if (Fraction(text) > limit) == (value > limit):
            return text
    return str(value)


def _change(old: int | Fraction, new: int | Fraction) -> Fraction:
    if not old:
        raise _NotCompared("the version before holds none")
    return abs(Fraction(new - old) / Fraction(old))


def _token_drift(old: VersionFacts, new: VersionFacts) -> tuple[Fraction, str]:
    before, after = old.manifest.num_tokens, new.manifest.num_tokens
    return _change(before, after), f"{counted(before, 'token')} -> {after:,}"


def _document_drift(old: VersionFacts, new: VersionFacts) -> tuple[Fraction, str]:
    before, after = old.manifest.num_documents, new.manifest.num_documents
    return _change(before, after), f"{counted(before, 'document')} -> {after:,}"


def _bytes_per_token_drift(old: VersionFacts, new: VersionFacts) -> tuple[Fraction, str]:
    before, after = _bytes_per_token(old), _bytes_per_token(new)
    return _change(before, after), f"{float(before):.4g} bytes per token -> {float(after):.4g}"


def _bytes_per_token(facts: VersionFacts) -> Fraction:
    """Return the bytes per token of all text that was encoded."""
    encoded = added(facts.build.encoded.values(), None) if facts.build else None
    if encoded is None or not encoded.bytes or not encoded.tokens:
        raise _NotCompared(f"the bytes of the text of {facts.version} are not known")
    return Fraction(encoded.bytes, encoded.tokens)


def _length_drift(old: VersionFacts, new: VersionFacts) -> tuple[Fraction, str]:
    return length_distance(_lengths(old), _lengths(new)), "distance of the histograms of lengths"


def _lengths(facts: VersionFacts) -> list[int]:
    """Return the histogram of document lengths in all splits."""
    lengths = added((split.lengths for split in facts.build.statistics.values()), []) if facts.build else []
    if not any(lengths):
        raise _NotCompared(f"the document lengths of {facts.version} are not known")
    return lengths


def length_distance(old: Sequence[int], new: Sequence[int]) -> Fraction:
    """Return the total variation distance of two histograms, in [0, 1]: the share of documents in other bins.

    Half the sum of |p - q| over the bins, where p and q are the shares of the documents in a bin.

    Example: [1, 1], [0, 2] -> 1/2
    """
    num_old, num_new = sum(old), sum(new)
    pairs = zip_longest(old, new, fillvalue=0)
    return Fraction(sum(abs(a * num_new - b * num_old) for a, b in pairs), 2 * num_old * num_new)


_MINIMA: dict[str, Callable[[Manifest], int]] = {
    "min_documents": lambda found: found.num_documents,
    "min_tokens": lambda found: found.num_tokens,
}
_SHARES: dict[str, Callable[[Manifest], int]] = {
    "max_duplicate_share": lambda found: found.rows.duplicates,
    "max_quarantined_share": lambda found: found.rows.quarantined,
    "max_filtered_share": lambda found: found.rows.filtered,
}
_DRIFTS: dict[str, Callable[[VersionFacts, VersionFacts], tuple[Fraction, str]]] = {
    "max_token_drift": _token_drift,
    "max_document_drift": _document_drift,
    "max_bytes_per_token_drift": _bytes_per_token_drift,
    "max_length_drift": _length_drift,
}


def _without_target(name: str, limit: float, build: BuildRecord) -> GateResult:
    chat = _chat(build)
    found = chat.without_target + chat.dropped
    shown = f"{found:,} of {counted(chat.conversations + chat.dropped, 'conversation')}"
    return GateResult(name, f"<= {limit:,}", shown, found <= limit)


def _learned_share(name: str, limit: float, build: BuildRecord) -> GateResult:
    by_class = sum_by_class(split.classes for split in build.statistics.values())
    of_chats = by_class * (np.arange(256) & ROLE_BITS != PLAIN_TEXT)
    learned, total = int(of_chats[learned_classes("assistant")].sum()), int(of_chats.sum())
    share = Fraction(learned, max(1, total))
    shown = f"{float(share):.4g} ({learned:,} of {counted(total, 'token')} of conversations)"
    return GateResult(name, f">= {limit!r}", shown, share >= Fraction(repr(limit)))


def _stop_token(name: str, limit: float, build: BuildRecord) -> GateResult:
    chat = _chat(build)
    missing = chat.turns - chat.ended_turns
    shown = f"{missing:,} of {counted(chat.turns, 'turn')} of the assistant end without one"
    return GateResult(name, "a stop token ends every turn", shown, missing == 0)


def _doubled_bos(name: str, limit: float, build: BuildRecord) -> GateResult:
    chat = _chat(build)
    shown = f"{chat.doubled_bos:,} of {counted(chat.conversations, 'conversation')} begin with two"
    return GateResult(name, "one beginning-of-text token at most", shown, chat.doubled_bos == 0)


def _chat(build: BuildRecord) -> ChatCounts:
    return added((source.chat for source in build.encoded.values()), ChatCounts())


_CHAT_GATES: dict[str, Callable[[str, float, BuildRecord], GateResult]] = {
    "max_documents_without_target": _without_target,
    "min_learned_share": _learned_share,
    "stop_token_learned": _stop_token,
    "no_doubled_bos": _doubled_bos,
}
