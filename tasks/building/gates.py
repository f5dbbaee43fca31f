"""Gates: compare a finished version with the limits of its spec's `checks`, and with the version before it.

All comparisons are exact: a limit is the decimal fraction that the spec spells. A drift that can't be measured passes,
and its result says why: the first version of a dataset has no other to be compared with. A version that exists is
evaluated from the figures in its manifest and build.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import partial
from itertools import zip_longest
from shlex import quote
from typing import TYPE_CHECKING

import numpy as np

from tokenloom.errors import GateFailed, message_of
from tokenloom.storage.formats.classes import PLAIN_TEXT, ROLE_BITS, learned_classes
from tokenloom.storage.formats.statistics import ChatCounts, added
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.build_record import GateResult
from tokenloom.storage.versions.published import is_published
from tokenloom.storage.versions.tag_moves import version_before
from tokenloom.tasks.building.version_facts import VersionFacts, facts_of, sum_by_class
from tokenloom.wording import counted

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec.build_spec import BuildSpec

_MAX_DIGITS = 15
#: gates without a number: the expectation, and none may differ from it
_EXPECTED = {
    "stop_token_learned": "a stop token ends every turn",
    "no_doubled_bos": "one beginning-of-text token at most",
}


class _NotCompared(Exception):
    """A gate can't be measured; the message says why."""


def evaluate_gates(facts: VersionFacts, tag: str, limits: Mapping[str, float]) -> list[GateResult]:
    """Return the result of every gate that is set, in the order of the spec's fields.

    A drift is not compared if the tag names the version itself.

    Args:
        facts: of the version.
        tag: names the version that drift is measured from.
        limits: by the name of the gate, see tokenloom.spec.blocks.Checks.

    Raises FormatError if the tag's log or the manifest of the version it names is damaged.
    """
    reference = _version_before(facts, tag) if any(name.endswith("_drift") for name in limits) else ""
    return gate_results(limits, facts, reference)


def gate_results(limits: Mapping[str, float], found: VersionFacts, reference: VersionFacts | str) -> list[GateResult]:
    """Return the result of every gate that is set.

    Args:
        limits: by the name of the gate.
        found: the version to be published.
        reference: the version that drift is measured from, or why there is none.
    """
    return [_result(name, limits[name], found, reference) for name in _GATES if name in limits]


def _result(name: str, limit: float, found: VersionFacts, reference: VersionFacts | str) -> GateResult:
    is_minimum, exact = name.startswith("min_"), Fraction(0) if name in _EXPECTED else Fraction(repr(limit))
    expected = _EXPECTED.get(name, f"{'>=' if is_minimum else '<='} {limit:,}")
    try:
        value, words = _GATES[name](found, reference)
    except _NotCompared as why:
        return GateResult(name, expected, f"not compared: {message_of(why)}", passed=True, compared=False)
    shown = f"{_shown(value, exact)} ({words})" if isinstance(value, Fraction) else words
    return GateResult(name, expected, shown, value >= exact if is_minimum else value <= exact)


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


def _shown(value: Fraction, limit: Fraction) -> str:
    """Return a value with as few digits as show on which side of the limit it is, but at least four."""
    for digits in range(4, _MAX_DIGITS):
        text = f"{float(value):.{digits}g}"
        if (Fraction(text) > limit) == (value > limit):
            return text
    return str(value)


#: a number, and words for it: of a share or a change, its two parts
Measured = tuple[int | Fraction, str]


def _total(field: str, found: VersionFacts, _: object) -> Measured:
    total = getattr(found.manifest, field)
    return total, f"{total:,}"


def _row_share(field: str, found: VersionFacts, _: object) -> Measured:
    rows = found.manifest.rows
    count = getattr(rows, field)
    return Fraction(count, max(1, rows.read)), f"{count:,} of {counted(rows.read, 'row')} read"


def _before(reference: VersionFacts | str) -> VersionFacts:
    if isinstance(reference, str):
        raise _NotCompared(reference)
    return reference


def _change(old: int | Fraction, new: int | Fraction) -> Fraction:
    if not old:
        raise _NotCompared("the version before holds none")
    return abs(Fraction(new - old) / Fraction(old))


def _total_drift(field: str, unit: str, found: VersionFacts, reference: VersionFacts | str) -> Measured:
    old = _before(reference)
    before, after = getattr(old.manifest, field), getattr(found.manifest, field)
    return _change(before, after), f"{counted(before, unit)} -> {after:,} since {old.version}"


def _bytes_per_token_drift(found: VersionFacts, reference: VersionFacts | str) -> Measured:
    old = _before(reference)
    before, after = _bytes_per_token(old), _bytes_per_token(found)
    words = f"{float(before):.4g} bytes per token -> {float(after):.4g} since {old.version}"
    return _change(before, after), words


def _bytes_per_token(facts: VersionFacts) -> Fraction:
    """Return the bytes per token of all text that was encoded."""
    encoded = added(facts.build.encoded.values(), None) if facts.build else None
    if encoded is None or not encoded.bytes or not encoded.tokens:
        raise _NotCompared(f"the bytes of the text of {facts.version} are not known")
    return Fraction(encoded.bytes, encoded.tokens)


def _length_drift(found: VersionFacts, reference: VersionFacts | str) -> Measured:
    old = _before(reference)
    distance = length_distance(_lengths(old), _lengths(found))
    return distance, f"distance of the histograms of lengths since {old.version}"


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


def _chats(found: VersionFacts) -> ChatCounts:
    """Return the counts of a version with conversations."""
    if "chat" not in found.manifest.spec:
        raise _NotCompared("the version has no conversations")
    if found.build is None:
        raise _NotCompared(f"the rendered conversations of {found.version} are not known")
    return added((source.chat for source in found.build.encoded.values()), ChatCounts())


def _without_target(found: VersionFacts, _: object) -> Measured:
    chat = _chats(found)
    num_without = chat.without_target + chat.dropped
    return num_without, f"{num_without:,} of {counted(chat.conversations + chat.dropped, 'conversation')}"


def _learned_share(found: VersionFacts, _: object) -> Measured:
    if found.conversations is None:  # those of imported masks count too
        _chats(found)
    assert found.build is not None  # else _chats raises
    by_class = sum_by_class(split.classes for split in found.build.statistics.values())
    of_chats = by_class * (np.arange(256) & ROLE_BITS != PLAIN_TEXT)
    learned, total = int(of_chats[learned_classes("assistant")].sum()), int(of_chats.sum())
    return Fraction(learned, max(1, total)), f"{learned:,} of {counted(total, 'token')} of conversations"


def _open_turns(found: VersionFacts, _: object) -> Measured:
    chat = _chats(found)
    missing = chat.turns - chat.ended_turns
    return missing, f"{missing:,} of {counted(chat.turns, 'turn')} of the assistant end without one"


def _doubled_bos(found: VersionFacts, _: object) -> Measured:
    chat = _chats(found)
    return chat.doubled_bos, f"{chat.doubled_bos:,} of {counted(chat.conversations, 'conversation')} begin with two"


_GATES: dict[str, Callable[[VersionFacts, VersionFacts | str], Measured]] = {
    "min_documents": partial(_total, "num_documents"),
    "min_tokens": partial(_total, "num_tokens"),
    "max_duplicate_share": partial(_row_share, "duplicates"),
    "max_quarantined_share": partial(_row_share, "quarantined"),
    "max_filtered_share": partial(_row_share, "filtered"),
    "max_token_drift": partial(_total_drift, "num_tokens", "token"),
    "max_document_drift": partial(_total_drift, "num_documents", "document"),
    "max_bytes_per_token_drift": _bytes_per_token_drift,
    "max_length_drift": _length_drift,
    "max_documents_without_target": _without_target,
    "min_learned_share": _learned_share,
    "stop_token_learned": _open_turns,
    "no_doubled_bos": _doubled_bos,
}
