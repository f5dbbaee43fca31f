"""What a trace returns: plain dicts, which `--json` prints; docs/reference/format-json.md has the fields."""

from __future__ import annotations

from typing import NotRequired, TypedDict

DEFAULT_CHARS = 300  # characters of a document's text that are shown


class TracedClasses(TypedDict):
    """What the mask of a shard says of some tokens; given if the version has conversations.

    `roles` counts the tokens of each role, and `targets` those that the dataset's policy makes targets.
    """

    roles: NotRequired[dict[str, int]]
    targets: NotRequired[int]


class TracedDocument(TracedClasses):
    """The part of a document that is in a sample.

    Tokens [start, end) of the sample are the tokens from `document_start` on of the document, which has `num_tokens`.
    `text` is the beginning of that part; None if no text was asked for.
    """

    start: int
    end: int
    document_start: int
    num_tokens: int
    source: str
    path: str
    row: int
    content: str
    id: NotRequired[str | None]  # given if a source of the version names ids
    text: str | None


class TracedSample(TypedDict):
    """A sample and its documents: sample `sample` of the split is sample `index` of its shard."""

    sample: int
    split: str
    shard: str
    index: int
    documents: list[TracedDocument]
    rank: NotRequired[int]  # given in a batch
    member: NotRequired[str]  # given in a mixture
    dataset: NotRequired[str]  # given in a mixture: STORE/DATASET@VERSION


class Trace(TypedDict):
    """Samples and their documents."""

    samples: list[TracedSample]


class Sighting(TypedDict):
    """A sample that holds a document: row `index` of the batch that `rank` takes in `step`.

    `step` counts from the start of the stream, `epoch` is that of the dataset, and `position` is the sample's in the
    stream: a checkpoint whose state has more `samples` has seen it.
    """

    epoch: int
    step: int
    rank: int
    index: int
    position: int
    sample: int
    member: NotRequired[str]  # given in a mixture
    seen: NotRequired[bool]  # given with a state: whether the run had taken it by then
