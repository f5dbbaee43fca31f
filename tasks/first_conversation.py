"""The first conversation of a build, encoded to be shown: what a template makes of it, and what is learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import naming_source
from tokenloom.tasks.encoding.documents import document_encoder
from tokenloom.tasks.encoding.encoders import load_for_measuring
from tokenloom.tasks.encoding.tokenization import TokenizeJob
from tokenloom.tasks.jobs import tokenize_job
from tokenloom.tasks.planning.plan import BuildPlan
from tokenloom.tasks.rows.rules import keep_documents
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import make_reader
from tokenloom.tokenizers import Tokenizer

_NUM_TRIED = 20  # rows, of which the first may be dropped or bad


@dataclass(frozen=True)
class FirstConversation:
    """A conversation that is encoded: `place` names its row; tokens and classes are (n,), with its end-of-text."""

    place: str
    tokens: NDArray[Any]
    classes: NDArray[np.uint8]
    tokenizer: Tokenizer


def first_conversation(plan: BuildPlan) -> FirstConversation | None:
    """Return the first document of the first source of conversations; None if its first rows have none.

    Args:
        plan: with its partitions.

    Raises TokenloomError as tokenize_partition, except for bad rows, which are passed over.
    """
    parts = (part for part in plan.partitions if plan.inputs[part.input_index].holds_conversations)
    job = next((tokenize_job(plan, part) for part in parts), None)
    if job is None:
        return None
    tokenizer = load_for_measuring(job.definition, job.tokenizer_fingerprint, job.encoding)
    with naming_source(job.file.source):
        return _first_of(job, tokenizer)


def _first_of(job: TokenizeJob, tokenizer: Tokenizer) -> FirstConversation | None:
    """Return the first document among the first rows of a partition."""
    encoder, rules = document_encoder(tokenizer, job.chat), replace(job.rules, on_error="skip")
    reader = make_reader({**job.file.options, "on_error": "skip"})
    place_of = partial(reader.place, job.file.url)
    batches = each_bounded(reader.read(job.file.url, job.part), job.file.options["max_bytes"], job.file.url)
    for rows in islice(batches, 1):
        first = keep_documents(rows.head(_NUM_TRIED), rules, place_of, tokenizer, encoder.form)
        for part in encoder.prepared(iter([first]), "skip", rules.without_target, place_of):
            if len(part.rows):
                encoded = encoder.encode(part.head(1))
                assert encoded.classes is not None
                return FirstConversation(place_of(int(part.rows[0])), encoded.tokens, encoded.classes, tokenizer)
    return None
