"""`tokenloom where`: find a document by its text, content or source row, and the training steps that see it."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenloom.cli.argument_types import add_reference, add_source_spec, count, integer_in
from tokenloom.cli.display import showing_progress
from tokenloom.cli.loader_arguments import (
    LoaderArguments,
    NoSamples,
    add_loader_arguments,
    as_usage_errors,
    make_steps,
    open_stream,
)
from tokenloom.cli.output import Output, shown_origin
from tokenloom.cli.results import NO, Result
from tokenloom.errors import SpecError
from tokenloom.reader.tracing.records import Sighting
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.wording import counted

if TYPE_CHECKING:
    from tokenloom.storage.versions.document_tables import FoundDocument, VersionTables
    from tokenloom.tasks.lookup.contents import Lookup

Query = tuple[str, str]  # what is looked up, "content", "text", "messages" or "path", and its value
_CONTENT = re.compile("[0-9a-fA-F]{32}")
_MAX_EPOCHS = 10_000
_MAX_SHOWN = 20  # at most this many documents, and steps, are printed


@dataclass(frozen=True)
class WhereResult(Result):
    """The documents that were looked up and the steps that see them, or the reason why there are none."""

    reference: str
    status: str
    reason: str
    content: str | None
    documents: list[FoundDocument]
    steps: list[Sighting]

    @property
    def exit_code(self) -> int:
        """0 if documents were found, else 3: the lookup is complete, and its answer is no."""
        return 0 if self.documents else NO


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_reference(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    for option, metavar, description in (
        ("content", "HASH", "the hash of its content, 32 hexadecimal digits, as `tokenloom peek` shows it"),
        ("text", "FILE", "a UTF-8 file with the text of the document"),
        ("messages", "FILE", "a JSON file with the conversation, in any layout"),
        ("path", "P", "the input file that has it, as `tokenloom inspect --json` lists it; needs --row"),
    ):
        what.add_argument(f"--{option}", dest="query", type=partial(_query, option), metavar=metavar, help=description)
    parser.add_argument(
        "--row", type=count, metavar="N", help="with --path: its row in the input; in JSON lines, its byte offset"
    )
    parser.add_argument(
        "--source", metavar="NAME", help="with --path: the source of the input, if several sources have the path"
    )
    add_source_spec(parser)
    add_loader_arguments(parser)
    parser.add_argument(
        "--epoch", type=count, default=0, metavar="E", help="the first epoch to search for steps (default: 0)"
    )
    parser.add_argument(
        "--epochs",
        type=integer_in(1, _MAX_EPOCHS),
        default=1,
        metavar="N",
        help=f"how many epochs to search, at most {_MAX_EPOCHS:,} (default: 1)",
    )


def _query(kind: str, value: str) -> Query:
    return kind, value


def run(
    reference: str,
    query: Query,
    row: int | None,
    source: str | None,
    spec: str | None,
    epoch: int,
    epochs: int,
    out: Output,
    **loader: Any,
) -> WhereResult:
    """Find documents, and the steps of a loader that see them.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        query: a content of 32 hexadecimal digits, a file with the text or conversation, or the path of an input.
        row: of the input; None for a content or text.
        source: the name of the input's source, if several have the path.
        spec: a YAML file that says where the sources are; None for those in build.json.
        epoch: the first epoch of the steps.
        epochs: how many epochs.
        out: prints the result.
        loader: the fields of LoaderArguments, except those of trace.

    Raises:
        SpecError: an argument is missing or out of range, or the version was not built from the spec.
        StoreError: the version does not exist, or a shard is missing.
        FormatError: a shard or a document table is damaged.
        InputError: the file of the text can't be read.
    """
    from tokenloom.storage.versions.document_tables import VersionTables

    arguments = LoaderArguments(**loader)
    kind, value = query
    if kind == "content" and not _CONTENT.fullmatch(value):
        raise SpecError(f"--content {value!r}: write 32 hexadecimal digits, as `tokenloom peek` shows them")
    if (kind == "path") != (row is not None):
        raise SpecError("--path and --row belong together: give both or neither")
    if source is not None and kind != "path":
        raise SpecError("--source: it belongs to --path; omit it")
    if arguments.given and arguments.batch_size is None:
        raise SpecError("--batch-size is required to name steps; omit all arguments of the loader to find the document")
    tables = VersionTables(*resolve(parse_reference(reference)))
    with showing_progress():
        found = _look_up(tables, query, row, source, spec)
    steps: list[Sighting] = []
    note = ""
    if arguments.given and found.documents:
        steps, note = _sightings(reference, tables, found.documents, arguments, range(epoch, epoch + epochs))
    _print(out, tables.reference, found)
    if arguments.given and found.documents:
        _print_steps(out, steps, note)
    return WhereResult(tables.reference, **vars(found), steps=steps)


def _look_up(tables: VersionTables, query: Query, row: int | None, source: str | None, spec: str | None) -> Lookup:
    """Look up a content, the text or conversation in a file, or a row of an input."""
    from tokenloom.tasks.lookup.contents import look_up_content, look_up_messages, look_up_text
    from tokenloom.tasks.lookup.rows import look_up_row
    from tokenloom.tasks.lookup.source_rows import SpecOfVersion

    (kind, value), known = query, SpecOfVersion(tables, spec)
    if kind == "content":
        return look_up_content(tables, value.lower(), known)
    if kind == "text":
        return look_up_text(tables, value, known)
    if kind == "messages":
        return look_up_messages(tables, value, known)
    assert row is not None, "run requires it with a path"
    return look_up_row(tables, source, value, row, known)


def _sightings(
    reference: str, tables: VersionTables, documents: list[FoundDocument], arguments: LoaderArguments, epochs: range
) -> tuple[list[Sighting], str]:
    """Return the steps that see the documents, and a note that says why there are none."""
    from tokenloom.reader.tracing.sightings import ShardTokens, check_epochs, datasets_of, find_sightings

    split = documents[0]["split"]  # all have this one: a content determines it
    try:
        if arguments.state is None:
            stream, taken = open_stream(tables.reference, replace(arguments, split=split))
        else:
            stream, taken = open_stream(reference, arguments)
    except NoSamples as error:
        return [], str(error)
    tokens = [ShardTokens(_shard_index(each), each["start"], each["start"] + each["num_tokens"]) for each in documents]
    with as_usage_errors():
        check_epochs(stream, epochs)
    seen = find_sightings(stream, tables.manifest.version, split, tokens, make_steps(arguments), epochs)
    if arguments.state is not None:
        seen = [{**each, "seen": each["position"] < taken} for each in seen]
    read = sorted({f"{own.dataset.split} of {own.dataset.files.manifest.version}" for _, own in datasets_of(stream)})
    return seen, f"no sample of the epochs [{epochs.start}, {epochs.stop}) of {', '.join(read)} has one of its tokens"


def _shard_index(document: FoundDocument) -> int:
    return int(document["shard"].rpartition("/")[2].removesuffix(".tok"))


def _print(out: Output, place: str, found: Lookup) -> None:
    kind = found.status.replace("_", " ")
    out.line(f"{place}: {kind}{': ' if found.reason else ''}{found.reason}")
    for document in found.documents[:_MAX_SHOWN]:
        tokens = f"{document['shard']}, token {document['start']:,}, {counted(document['num_tokens'], 'token')}"
        out.line(f"  document  {tokens}, {shown_origin(document)}, content {document['content']}")
    _print_rest(out, len(found.documents), "document")


def _print_steps(out: Output, steps: list[Sighting], note: str) -> None:
    out.line()
    if not steps:
        out.line(note)
        return
    columns = ["epoch", "step", "rank", "index", "position", "sample", "member", "seen"]
    header = [name for name in columns if name in steps[0]]
    rows = [[_cell(dict(step)[name]) for name in header] for step in steps[:_MAX_SHOWN]]
    out.table(header, rows)
    _print_rest(out, len(steps), "sample")


def _cell(value: object) -> object:
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _print_rest(out: Output, num_all: int, noun: str) -> None:
    if num_all > _MAX_SHOWN:
        out.line(f"  and {counted(num_all - _MAX_SHOWN, noun)} more; --json has all")
