"""`tokenloom peek`: show the first documents of a split, decoded, with the source row of each.

Of a conversation it shows the tokens in runs of one role. `>` before a line says that it is learned. `⏎` is the end of
a line of the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.arguments import LEARN, Argument, Ref, positive
from tokenloom.cli.output import Json, Output, Result, shown_origin
from tokenloom.errors import InputError
from tokenloom.reader.samples import decode, version_tokenizer
from tokenloom.storage.formats.arrays import AnyArray
from tokenloom.storage.formats.classes import ENDS_TURN, PLAIN_TEXT, ROLE_BITS, ROLES, learned_classes, parse_policy
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.published import check_split
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.wording import counted, printable, printable_line

if TYPE_CHECKING:
    from tokenloom.tokenizers import Tokenizer

_MAX_RUNS = 200  # shown of a document


def peek(
    reference: Ref,
    *,
    split: str = "train",
    count: Annotated[int, Argument("N", positive)] = 3,
    chars: Annotated[int, Argument("N", positive)] = 300,
    learn: Annotated[str, LEARN] = "assistant",
    out: Output,
) -> Result:
    """Show decoded documents and where they come from.

    Args:
        split: the split
        count: how many documents to show
        chars: how many characters of each document, or of each turn

    Example:
        peek store/news --split test --count 5
    """
    tables = VersionTables(*resolve(parse_reference(reference)))
    check_split(reference, tables.manifest, split)
    documents = list(islice(_documents(tables, split, count, chars, learned_classes(parse_policy(learn))), count))
    for document in documents:
        _print(out, document, chars)
    if out.is_quiet and tables.manifest.tokenizer.kind != "ids":
        _add_conversations(tables, documents)
    return Result({"reference": tables.reference, "split": split, "documents": documents})


def _print(out: Output, document: Json, chars: int) -> None:
    tokens, runs = counted(document["num_tokens"], "token"), document.get("runs")
    if runs is not None:
        tokens += f", {sum(run['end'] - run['start'] for run in runs if run['learned']):,} learned"
    out.line(f"--- {shown_origin(document)}, {tokens}, content {document['content']}")
    if runs is None:
        out.lines(document["text"])
    else:
        print_runs(out, runs, chars)


def _documents(tables: VersionTables, split: str, count: int, chars: int, learned: NDArray[np.bool_]) -> Iterator[Json]:
    """Yield at most `count` documents of each shard of a split, their texts cut to `chars` characters.

    A conversation has the `runs` of its tokens too.
    """
    tokenizer = version_tokenizer(tables.store, tables.manifest)
    for entry in tables.manifest.splits[split].shards:
        if not entry.documents:
            continue
        shard = StoredShard(tables.store, tables.manifest.version, entry)
        rows = shard.documents(tables.open(entry), 0, int(shard.offsets[min(count, entry.documents)]))
        for found in tables.documents(entry, rows):
            start, num_tokens = found["start"], found["num_tokens"]
            ids = shard.tokens(start, start + min(num_tokens - 1, 4 * chars))
            text = printable(decode(tokenizer, ids)[:chars])
            yield {**found, "text": text, **_runs(tokenizer, shard, start, start + num_tokens, learned)}


def _runs(tokenizer: Tokenizer, shard: StoredShard, start: int, end: int, learned: NDArray[np.bool_]) -> Json:
    """Divide tokens [start, end) of a shard, a conversation, into runs; nothing for plain text."""
    if int(shard.classes(start, start + 1)[0]) & ROLE_BITS == PLAIN_TEXT:
        return {}
    return {"runs": class_runs(tokenizer, shard.tokens(start, end), shard.classes(start, end), learned)}


def _add_conversations(tables: VersionTables, documents: list[Json]) -> None:
    """Add the normalized form of each conversation, from its source."""
    from tokenloom.tasks.lookup import Lookups

    lookups = Lookups(tables, None)
    entries = {(entry.source, entry.path): entry for entry in tables.inputs}
    for document in documents:
        if "runs" in document:
            entry = entries[document["source"], document["path"]]
            try:
                text = lookups.read_row(entry, document["row"]).text
            except InputError:
                text = None
            document["conversation"] = None if text is None else json.loads(text)


def class_runs(
    tokenizer: Tokenizer, ids: AnyArray, classes: NDArray[np.uint8], learned: NDArray[np.bool_]
) -> list[Json]:
    """Divide a document into runs of tokens [start, end) that have one role and are all learned, or all not.

    Args:
        tokenizer: decodes the ids.
        ids: (n,)
        classes: (n,) of the tokens.
        learned: (256,) whether a class is learned.
    """
    roles = classes & ROLE_BITS
    shown = roles + 16 * learned[classes]
    cuts = [0, *(np.flatnonzero(np.diff(shown)) + 1).tolist(), len(ids)]
    return [
        {
            "start": start,
            "end": end,
            "role": ROLES[roles[start]] if roles[start] < len(ROLES) else f"role {roles[start]}",
            "learned": bool(learned[classes[start]]),
            "ends_turn": bool(classes[end - 1] & ENDS_TURN),
            "text": decode(tokenizer, ids[start:end]),
        }
        for start, end in pairwise(cuts)
        if start < end
    ]


def print_runs(out: Output, runs: Sequence[Json], chars: int) -> None:
    """Print runs, at most `chars` characters of each."""
    for run in runs[:_MAX_RUNS]:
        for name, line in _lines(run, chars):
            out.line(f"  {'>' if run['learned'] else ' '} {name:<12} {line}")
    if len(runs) > _MAX_RUNS:
        out.line(f"    and {len(runs) - _MAX_RUNS:,} more parts")


def _lines(run: Json, chars: int) -> Iterator[tuple[str, str]]:
    """Yield (role, line) of each line of a run; the role stands only before the first."""
    text = run["text"]
    text = text if len(text) <= chars else text[:chars] + "..."
    lines = text.replace("\n", "⏎\n").split("\n")
    for number, line in enumerate(lines if lines[-1] else lines[:-1]):
        yield "" if number else run["role"], printable_line(line)
