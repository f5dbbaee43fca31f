"""The contents and the gaps of a version, described once for build, plan, inspect and report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from shlex import quote
from typing import Any

import numpy as np

from tokenloom.chat.conversation import version_chat
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.classes import BEGINS, ENDS_TURN, ROLE_BITS, ROLES, learned_classes
from tokenloom.storage.formats.manifest import QUARANTINE, Manifest, TokenizerEntry
from tokenloom.storage.formats.statistics import ChatCounts, added
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.build_record import (
    BuildRecord,
    DocumentOptions,
    GateResult,
    find_build_record,
    version_spec,
)
from tokenloom.storage.versions.published import load_manifest, missing_file, version_path
from tokenloom.tasks.quarantine import quarantine_reasons
from tokenloom.tokenizers import version_decoder
from tokenloom.wording import NO_TURN_HINT, counted, tokenizer_name

INFERRED = "documents_inferred"  # in build.json: documents of token files without an index


@dataclass(frozen=True)
class ClassFigures:
    """Counts of a version with conversations.

    `turns` are those of the assistant that end with a stop token. `tokens` are by role, without roles that have none.
    `learned` are the tokens that are targets by default.
    """

    conversations: int
    turns: int
    tokens: dict[str, int]
    learned: int

    @property
    def learned_share(self) -> float:
        """The learned tokens of all tokens; 0 without tokens."""
        return self.learned / max(1, sum(self.tokens.values()))


def sum_by_class(counts: Iterable[Mapping[str, int]]) -> Int64s:
    """Return the tokens of each class, (256,), from several counts by the number of the class."""
    parts = list(counts)
    return np.array([sum(part.get(str(number), 0) for part in parts) for number in range(256)], np.int64)


def class_figures(counts: Iterable[Mapping[str, int]]) -> ClassFigures:
    """Return the figures of tokens, from several counts by the number of the class."""
    classes, by_class = np.arange(256), sum_by_class(counts)
    by_role = np.bincount(classes & ROLE_BITS, by_class, minlength=len(ROLES)).astype(np.int64)[: len(ROLES)].tolist()
    return ClassFigures(
        conversations=int(by_class[classes & BEGINS > 0].sum()),
        turns=int(by_class[classes & ENDS_TURN > 0].sum()),
        tokens={role: count for role, count in zip(ROLES, by_role, strict=True) if count},
        learned=int(by_class[learned_classes("assistant")].sum()),
    )


@dataclass(frozen=True)
class VersionFacts:
    """A version of a store: its manifest, and its build.json, None if that can't be read."""

    store: Store
    manifest: Manifest
    build: BuildRecord | None

    @property
    def reference(self) -> str:
        """STORE/DATASET@VERSION."""
        return f"{self.store.root}@{self.version}"

    @property
    def version(self) -> str:
        """The version's name."""
        return self.manifest.version

    @property
    def splits(self) -> dict[str, dict[str, int]]:
        """Tokens, documents and shards of each split."""
        return {
            name: {"tokens": split.tokens, "documents": split.documents, "shards": len(split.shards)}
            for name, split in self.manifest.splits.items()
        }

    @property
    def tokenizer(self) -> dict[str, Any]:
        """The tokenizer's name for people, its kind and the size of its vocabulary."""
        return tokenizer_label(self.manifest.tokenizer, self.build and self.build.spec.get("tokenizer"))

    @cached_property
    def conversations(self) -> ClassFigures | None:
        """Figures of its conversations or imported masks; None if it has none, or build.json can't be read."""
        if self.build is None:
            return None
        classes = [split.classes for split in self.build.statistics.values()]
        return class_figures(classes) if "chat" in self.manifest.spec or any(classes) else None

    @property
    def recorded_gates(self) -> list[GateResult]:
        """The results of the spec's checks when the version was published."""
        return self.build.gates if self.build else []

    @cached_property
    def quarantined(self) -> dict[str, dict[str, int]]:
        """Quarantined rows by source and reason; raises FormatError if their list is damaged."""
        if not self.manifest.rows.quarantined:
            return {}
        return quarantine_reasons(self.store, version_path(self.version, QUARANTINE))

    @cached_property
    def warnings(self) -> list[str]:
        """A line for each source of which nothing is kept, one for the splits without a document, and on conversations.

        Raises FormatError if the manifest has values that no build writes.
        """
        spec = version_spec(self.store, self.manifest)
        shares = dict(spec.splits)
        empty = {name: shares.get(name, 0.0) for name, split in self.manifest.splits.items() if not split.documents}
        encoded = self.build.encoded if self.build else {}
        return [
            *empty_splits(empty, self.manifest.num_documents),
            *_empty_sources(self.build, spec.documents),
            *chain(
                *(
                    chat_warnings(f"source {name}", source.chat, self._stop_as_text)
                    for name, source in encoded.items()
                    if source.chat
                )
            ),
            *_inferred(self.build),
        ]

    def _stop_as_text(self) -> str:
        from tokenloom.chat.rendering import stop_as_text  # late: versions of texts need no Jinja

        chat, tokenizer = version_chat(self.store, self.manifest), version_decoder(self.store, self.manifest)
        return stop_as_text(chat, tokenizer) if chat and tokenizer else ""

    @property
    def file_check(self) -> str:
        """Whether the lengths of the version's files are right, and the command that reads their bytes."""
        if name := missing_file(self.store, self.manifest):
            verify = f"`tokenloom verify {quote(self.reference)}`"
            return f"damaged: {name} is missing or cut short; {verify} lists all damage, and what to do"
        return lengths_checked(self.reference)

    def to_json(self) -> dict[str, Any]:
        """Return the facts that `build --json` and the event of a publication have of a version."""
        return {
            "reference": self.reference,
            "version": self.version,
            "tokens": self.manifest.num_tokens,
            "documents": self.manifest.num_documents,
            "shards": len(self.manifest.shards),
            "tokenizer": self.tokenizer,
            "splits": self.splits,
            "rows": self.manifest.row_counts,
            "quarantined": self.quarantined,
            "warnings": self.warnings,
        }


def facts_of(store: Store, version: str) -> VersionFacts:
    """Return the facts of a published version.

    Raises:
        StoreError: the version does not exist, or the store can't be read.
        FormatError: its manifest is damaged.
    """
    return VersionFacts(store, load_manifest(store, version), find_build_record(store, version))


def tokenizer_label(entry: TokenizerEntry, definition: object) -> dict[str, Any]:
    """Return a tokenizer's name, kind and vocabulary size for people; see tokenizer_name for the definition."""
    name = tokenizer_name(entry.name, entry.kind, definition)
    return {"name": name, "kind": entry.kind, "vocab_size": entry.vocab_size}


def empty_splits(shares: Mapping[str, float], num_documents: int, *, is_estimate: bool = False) -> list[str]:
    """Return a line for the splits, by name with their share of some documents, that are or may be empty, if any."""
    if not shares:
        return []
    listed = " and ".join(f"the split {name} (share {share:g})" for name, share in shares.items())
    none, about = ("perhaps no", "about ") if is_estimate else ("no", "")
    documents = f"{about}{counted(num_documents, 'document')}"
    return [f"{none} document in {listed} of {documents}; add documents, or give larger shares in `splits`"]


def _empty_sources(build: BuildRecord | None, rules: DocumentOptions) -> Iterator[str]:
    if build is None:
        return
    kept = added((split.sources for split in build.statistics.values()), {})
    causes = {"are in other sources too": rules.deduplicate, "are excluded": rules.exclude is not None}
    why_dropped = " or ".join(cause for cause, is_set in causes.items() if is_set)
    for name, encoded in build.encoded.items():
        if encoded.documents and name not in kept:
            found = counted(encoded.documents, "document")
            yield f"source {name}: nothing is kept of {found}, which {why_dropped}; remove the source if that is right"
        elif name not in kept:
            yield (
                f"source {name}: nothing is kept: its rows have no text, or its filter or a rule of `documents` leaves "
                "them out; check these, or remove the source"
            )


def chat_warnings(rows: str, chat: ChatCounts, stop_as_text: Callable[[], str]) -> Iterator[str]:
    """Yield a line for each fault of conversations.

    Args:
        rows: which they are, such as "source NAME".
        chat: their counts.
        stop_as_text: see tokenloom.chat.rendering; called only if turns lack a stop token.
    """
    if missing := chat.turns - chat.ended_turns:
        step = "give chat.stop_tokens, or a template that writes one"
        if stop := stop_as_text():
            step = f"{stop}: give a tokenizer that has it, another chat.template, or this text as chat.stop_tokens"
        yield (
            f"{rows}: {missing:,} of {counted(chat.turns, 'turn')} of the assistant end without a stop token, so a "
            f"model does not learn to end them; {step}"
        )
    if chat.doubled_bos:
        yield (
            f"{rows}: {counted(chat.doubled_bos, 'conversation')} begin with two beginning-of-text tokens; write it in "
            "the template or in the first message, not in both"
        )
    if chat.incomplete:
        yield (
            f"{rows}: the template leaves tools, calls or messages out of {chat.incomplete:,} of "
            f"{counted(chat.conversations, 'conversation')}; give a chat.template that writes them, or drop such rows"
        )
    if chat.dropped or chat.without_target:
        kept = f", and {chat.without_target:,} of them are kept" if chat.without_target else ""
        total = chat.conversations + chat.dropped
        hint = "" if chat.turns else f"; {NO_TURN_HINT}"
        yield (
            f"{rows}: nothing is learned of {chat.dropped + chat.without_target:,} of "
            f"{counted(total, 'conversation')}{kept}; see documents.without_target{hint}"
        )


def _inferred(build: BuildRecord | None) -> Iterator[str]:
    count = build.measured.get(INFERRED, 0) if build else 0
    if count:
        yield (
            f"the bounds of {counted(count, 'document')} were found by end-of-text ids, because their files have no "
            "index of documents"
        )


def lengths_checked(reference: str) -> str:
    """Return that the files of a version have the right lengths, and the command that checks the rest."""
    return f"only the lengths of its files were checked; `tokenloom verify {quote(reference)}` reads their bytes"
