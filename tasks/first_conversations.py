"""The first conversations of a build, encoded before it: what a template makes of them, and what is learned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.statistics import ChatCounts
from tokenloom.tasks.building.documents import document_encoder
from tokenloom.tasks.building.encoders import load_for_measuring
from tokenloom.tasks.building.plan import Build, BuildPlan, Partition, partitions_by_source
from tokenloom.tasks.rows.rules import keep_documents
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.sources.reader import naming_source, with_line
from tokenloom.tokenizers import Tokenizer

_NUM_TRIED = 20  # rows, of which the first may be dropped or bad


@dataclass(frozen=True)
class FirstConversation:
    """A conversation that is encoded: `place` names its row; tokens and classes are (n,), with its end-of-text."""

    place: str
    tokens: NDArray[Any]
    classes: NDArray[np.uint8]
    tokenizer: Tokenizer


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a source of conversations: what is counted of them, and the first that becomes a document."""

    source: str
    counts: ChatCounts
    shown: FirstConversation | None


def first_rows(plan: BuildPlan) -> Iterator[FirstRows]:
    """Yield what a build makes of the first rows of each source of conversations.

    Args:
        plan: with its partitions.

    Raises TokenloomError as tokenize_partition, except for bad rows, which are passed over.
    """
    for parts in partitions_by_source(plan):
        if parts[0].file.holds_conversations:
            with naming_source(parts[0].file.source):
                yield _first_rows(plan.build, parts[0], load_for_measuring(plan.build))


def _first_rows(build: Build, part: Partition, tokenizer: Tokenizer) -> FirstRows:
    file, rules = part.file, replace(build.rules, on_error="skip")
    encoder = document_encoder(tokenizer, build.chat_of(file))
    reader = make_reader({**file.options, "on_error": "skip"})
    place_of = partial(reader.place, file.url)
    batches = each_bounded(reader.read(file.url, part), file.options["max_bytes"], file.url)
    counts, shown = ChatCounts(), None
    for rows in islice(batches, 1):
        first = keep_documents(rows.head(_NUM_TRIED), rules, place_of, tokenizer, encoder.form)
        for documents in encoder.prepared(iter([first]), "skip", rules.without_target, place_of):
            counts += ChatCounts(dropped=documents.num_without_target)
            if len(documents.rows):
                encoded = encoder.encode(documents)
                assert encoded.classes is not None
                assert encoded.counts is not None
                counts += encoded.counts
                own = slice(int(encoded.num_tokens[0]))
                place = with_line(place_of(int(documents.rows[0])))
                shown = shown or FirstConversation(place, encoded.tokens[own], encoded.classes[own], tokenizer)
    return FirstRows(file.source, counts, shown)
