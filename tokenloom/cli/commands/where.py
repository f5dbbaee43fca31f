"""`tokenloom where`: find a document by its text, content or source row, and the training steps that see it."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenloom.cli.argument_types import add_reference, count, positive_up_to
from tokenloom.cli.display import showing_progress
from tokenloom.cli.loader_arguments import LoaderArguments, add_loader_arguments
from tokenloom.cli.opened_stream import NoSamples, as_usage_errors, make_steps, open_loaded
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.errors import SpecError
from tokenloom.reader.tracing.records import Sighting
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.tasks.lookup.outcomes import FoundDocument, HashedText, Lookup
from tokenloom.wording import counted

if TYPE_CHECKING:
    from tokenloom.tasks.lookup.tables import VersionTables

_CONTENT = re.compile("[0-9a-fA-F]{32}")
_MAX_EPOCHS = 10_000
_MAX_SHOWN = 20  # documents, and steps


@dataclass(frozen=True)
class WhereResult(Result):
    """The documents that were looked up and the steps that see them, or the reason why there are none."""

    reference: str
    status: str
    reason: str
    hashed: list[HashedText]
    documents: list[FoundDocument]
    steps: list[Sighting]

    @property
    def exit_code(self) -> int:
        """0 if documents were found, else 3: the lookup is complete, and its answer is no."""
        return 0 if self.documents else 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_reference(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--content", metavar="HASH", help="a content, 32 hexadecimal digits, as `tokenloom peek` shows")
    what.add_argument("--text", metavar="FILE", help="a file in UTF-8 that holds the text of a document")
    what.add_argument("--path", metavar="P", help="an input, as `tokenloom inspect --json` lists it; with --row")
    parser.add_argument("--row", type=count, metavar="N", help="row of the input; of JSON lines, the byte offset")
    parser.add_argument("--source", metavar="NAME", help="the source of the input, if several have the path")
    parser.add_argument(
        "--spec", metavar="SPEC", help="a spec that says where the sources are now (default: the sources in build.json)"
    )
    add_loader_arguments(parser)
    parser.add_argument("--epoch", type=count, default=0, metavar="E", help="the first epoch to look at (default: 0)")
    parser.add_argument(
        "--epochs",
        type=positive_up_to(_MAX_EPOCHS),
        default=1,
        metavar="N",
        help=f"how many epochs, at most {_MAX_EPOCHS:,} (default: 1)",
    )


def run(
    reference: str,
    content: str | None,
    text: str | None,
    path: str | None,
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
        content: 32 hexadecimal digits, or None.
        text: a file that holds the text, or None.
        path: an input, or None; with `row`, and with `source` if several sources have it.
        row: of the input.
        source: the name of the input's source.
        spec: a YAML file that says where the sources are; None for those in build.json.
        epoch: the first epoch of the steps.
        epochs: how many epochs.
        out: prints the result.
        loader: the fields of LoaderArguments, except those of trace.

    Raises:
        SpecError: an argument is missing or out of range, or the version was not built from the spec.
        StoreError: there is no such version, or a shard is missing.
        FormatError: a shard or a document table is damaged.
        InputError: the file of the text can't be read.
    """
    from tokenloom.tasks.lookup.tables import VersionTables

    sought, arguments = _Sought(content, text, path, row, source), LoaderArguments(**loader)
    _check(sought, arguments)
    store, manifest = resolve(parse_reference(reference))
    with showing_progress():
        found = _look_up(VersionTables(store, manifest), sought, spec)
    place = f"{store.root}@{manifest.version}"
    steps: list[Sighting] = []
    note = ""
    if arguments.is_given and found.documents:
        steps, note = _sightings(reference, place, manifest, found, arguments, range(epoch, epoch + epochs))
    _print(out, place, found)
    if arguments.is_given and found.documents:
        _print_steps(out, steps, note or f"no sample of the epochs [{epoch}, {epoch + epochs}) has one of its tokens")
    return WhereResult(place, found.status, found.reason, found.hashed, found.documents, steps)


class _Sought(NamedTuple):
    """What to look for: a content, the text in a file, or a row of an input; the parser requires one of the three."""

    content: str | None
    text: str | None
    path: str | None
    row: int | None
    source: str | None


def _check(sought: _Sought, arguments: LoaderArguments) -> None:
    """Raise SpecError for arguments that do not fit together."""
    if sought.content is not None and not _CONTENT.fullmatch(sought.content):
        raise SpecError(f"--content {sought.content!r}: write 32 hexadecimal digits, as `tokenloom peek` shows them")
    if (sought.path is None) != (sought.row is None):
        raise SpecError("--path and --row belong together: give both or neither")
    if sought.source is not None and sought.path is None:
        raise SpecError("--source: it belongs to --path; omit it")
    if arguments.is_given and arguments.batch_size is None:
        raise SpecError("--batch-size is required to name steps; omit all arguments of the loader to find the document")


def _look_up(tables: VersionTables, sought: _Sought, spec: str | None) -> Lookup:
    from tokenloom.tasks.lookup.contents import look_up_content, look_up_text
    from tokenloom.tasks.lookup.known_spec import KnownSpec
    from tokenloom.tasks.lookup.rows import look_up_row

    known = KnownSpec(tables.store, tables.manifest, spec)
    if sought.content is not None:
        return look_up_content(tables, sought.content.lower(), known)
    if sought.text is not None:
        return look_up_text(tables, sought.text, known)
    assert sought.path is not None and sought.row is not None  # as checked before
    return look_up_row(tables, sought.source, sought.path, sought.row, known)


def _sightings(
    reference: str, place: str, manifest: Manifest, found: Lookup, arguments: LoaderArguments, epochs: range
) -> tuple[list[Sighting], str]:
    """Return the steps that see the documents, and why there can be none, "" if there can."""
    from tokenloom.reader.tracing.sightings import ShardTokens, check_epochs, find_sightings

    split = found.documents[0]["split"]  # of all: a content determines it
    is_state = arguments.state is not None
    try:
        opened = open_loaded(*((reference, arguments) if is_state else (place, replace(arguments, split=split))))
    except NoSamples as error:
        return [], str(error)
    read = {(data.files.manifest.version, data.split) for data in opened.datasets.values()}
    if (manifest.version, split) not in read:
        names = ", ".join(f"{name} of {version}" for version, name in sorted(read))
        return [], f"the state reads {names}, and the document is in {split} of {manifest.version}"
    tokens = [
        ShardTokens(_shard_index(each), each["start"], each["start"] + each["num_tokens"]) for each in found.documents
    ]
    steps = make_steps(arguments)
    with as_usage_errors():
        check_epochs(opened.stream, epochs)
    seen = find_sightings(opened.stream, manifest.version, split, tokens, steps, epochs)
    return [{**each, "seen": each["position"] < opened.taken} for each in seen] if is_state else seen, ""


def _shard_index(document: FoundDocument) -> int:
    return int(document["shard"].rpartition("/")[2].removesuffix(".tok"))


def _print(out: Output, place: str, found: Lookup) -> None:
    kind = found.status.replace("_", " ")
    out.line(f"{place}: {kind}{': ' if found.reason else ''}{found.reason}")
    for text in found.hashed:
        out.line(f"  hashed    {text['what']}: {counted(text['bytes'], 'byte')}, content {text['content']}")
    for document in found.documents[:_MAX_SHOWN]:
        identifier = f", id {document['id']}" if document.get("id") is not None else ""
        row = f"{document['source']}: {document['path']}, row {document['row']}{identifier}"
        tokens = f"{document['shard']}, token {document['start']:,}, {counted(document['num_tokens'], 'token')}"
        out.line(f"  document  {tokens}, {row}, content {document['content']}")
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
