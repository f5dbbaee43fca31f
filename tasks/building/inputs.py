"""List the files of the sources of a spec with their fingerprints, and recognize the layout of their conversations.

Nothing but the start of CSV files and the first conversations is read. The plan puts the layout into the spec, so it is
part of a version's identity, and into the options with which the files are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from tokenloom.chat.layouts import recognized
from tokenloom.errors import BadConversation, InputError
from tokenloom.storage.formats.records import sha256_of
from tokenloom.storage.stores.store import Store
from tokenloom.storage.work.fingerprints import (
    FingerprintMemory,
    Stamp,
    joined_fingerprint,
    remote_fingerprint,
    stamp,
)
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import Options, Rows, make_reader
from tokenloom.tasks.sources.base import MASK
from tokenloom.tasks.sources.columns import path_columns
from tokenloom.tasks.sources.files import info_of, sharing_files
from tokenloom.tasks.sources.hub import commit_of
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut
from tokenloom.tasks.sources.reader import naming_source

if TYPE_CHECKING:
    from tokenloom.spec.build_spec import BuildSpec

#: source -> pattern of its leave_out -> files that match it; HIDDEN counts those that its wildcards pass over
LeftOut = dict[str, dict[str, int]]
HIDDEN = "_* and .*"


@dataclass(frozen=True)
class InputFile:
    """One input file; `path` is relative to its source's root, `url` is its place on this machine.

    `options` determines how it is read. `stamps` changes when a local file changes: by URL, for this file or for all
    files that are read with it as one stream; empty for remote files. `sides` are files that belong to this one alone.
    """

    source: str
    path: str
    url: str
    num_bytes: int
    fingerprint: str
    options: dict[str, Any] = field(hash=False)
    stamps: dict[str, Stamp] = field(hash=False)
    sides: tuple[str, ...] = ()

    @property
    def holds_conversations(self) -> bool:
        """Whether its rows are conversations, not texts."""
        return self.options.get("messages") is not None

    @property
    def has_masks(self) -> bool:
        """Whether it holds tokens, and says which of them are targets."""
        return MASK in self.options.get("has", ())


def list_inputs(spec: BuildSpec, store: Store) -> tuple[list[InputFile], LeftOut]:
    """Return the input files of all sources, in the order of the sources, then of paths; and how many were left out.

    Args:
        spec: with absolute paths.
        store: the dataset's store, where fingerprints are remembered.

    Raises:
        InputError: no file matches, or a file name is a folder.
    """
    memory = FingerprintMemory(store)
    inputs: list[InputFile] = []
    left_out: LeftOut = {}
    for source in spec.source_names():
        files, counts = _inputs_of(spec, source, memory)
        inputs += files
        left_out |= {source: counts} if counts else {}
    memory.save()
    return inputs, left_out


def find_inputs(spec: BuildSpec, store: Store) -> tuple[list[InputFile], list[str]]:
    """Return the input files like list_inputs, and why those of a source could not be found; writes nothing."""
    memory = FingerprintMemory(store)
    inputs: list[InputFile] = []
    problems = []
    for source in spec.source_names():
        try:
            inputs += _inputs_of(spec, source, memory)[0]
        except InputError as error:
            problems.append(f"source {source}: {error}")
    return inputs, problems


def find_input(spec: BuildSpec, store: Store, source: str, path: str) -> InputFile | None:
    """Return one input file, None if the spec has no such source or file; fingerprints no other, and writes nothing.

    Args:
        spec: with absolute paths.
        store: where fingerprints may be remembered.
        source: the name of its source.
        path: relative to the root of the source.

    Raises InputError if the source can't be listed.
    """
    if source not in spec.source_names():  # of a version that no build wrote
        return None
    files, _ = _inputs_of(spec, source, FingerprintMemory(store), path)
    return next((file for file in files if file.path == path), None)


def files_of(spec: BuildSpec, name: str) -> tuple[Options, list[FoundFile], dict[str, int]]:
    """Return how to read the files of a source, the files, and how many each pattern leaves out."""
    source, documents = spec.sources[spec.source_names().index(name)], spec.documents
    rules = documents.model_dump(include={"max_bytes", "on_error", "encoding_errors"})
    cut = spec.model_dump(include={"partition_bytes"}, exclude_defaults=True)  # as an option, it names spills
    options = source.reading_options() | rules | spec.ids_options() | cut
    leave_out = LeaveOut(getattr(source, "leave_out", ()))
    with naming_source(name):
        files = make_reader(options).files(getattr(source, "path", ""), leave_out)
    hidden = {HIDDEN: leave_out.num_hidden} if leave_out.num_hidden else {}
    return options, files, leave_out.num_files | hidden


def _inputs_of(
    spec: BuildSpec, source: str, memory: FingerprintMemory, only_path: str | None = None
) -> tuple[list[InputFile], dict[str, int]]:
    """Return the input files of a source, and how many each pattern leaves out.

    With `only_path` only that file is fingerprinted, unless its rows depend on the others.
    """
    options, found, left_out = files_of(spec, source)
    is_stream = any("stream" in file.options for file in found)  # the rows of each file depend on all files
    if only_path is not None and not is_stream:
        found = [file for file in found if file.path == only_path]
    with naming_source(source):
        files = [input_file(file, source, options, memory) for file in found]
    if is_stream:
        stream = {"stream": sha256_of([[file.path, file.fingerprint] for file in files])}
        stamps = {url: seen for file in files for url, seen in file.stamps.items()}
        files = [replace(file, options=file.options | stream, stamps=stamps) for file in files]
    return files, left_out


def input_file(file: FoundFile, source: str, options: Options, memory: FingerprintMemory) -> InputFile:
    """Return a file of a source, which its options say how to read, with its fingerprint."""
    local = {} if file.fingerprint else {url: memory.local(url) for url in (file.url, *file.sides)}
    fingerprint = file.fingerprint or joined_fingerprint([one for one, _ in local.values()])
    options = {**options, **path_columns(file.path, options), **file.options}
    stamps = {url: seen for url, (_, seen) in local.items()}
    return InputFile(source, file.path, file.url, file.num_bytes, fingerprint, options, stamps, file.sides)


def check_unchanged(file: InputFile) -> None:
    """Raise InputError if an input has changed since the build was planned."""
    changed: str | None = None
    if file.stamps:
        changed = next((url for url, seen in file.stamps.items() if stamp(url) != seen), None)
    elif commit_of(file.url) is None:
        now = joined_fingerprint([remote_fingerprint(info_of(url), url) for url in (file.url, *file.sides)])
        changed = file.url if now != file.fingerprint else None
    if changed:
        raise _changed(changed)


def check_all_unchanged(spec: BuildSpec, files: Sequence[InputFile]) -> None:
    """Raise InputError if an input of a build has changed; objects of a store are listed together, not one by one."""
    listed: dict[str, str | None] = {}
    remote = {file.source for file in files if not file.stamps and not commit_of(file.url)}
    for source in sorted(remote):
        listed |= {file.url: file.fingerprint for file in files_of(spec, source)[1]}
    for file in files:
        if file.stamps or file.source not in remote:
            check_unchanged(file)
        elif listed.get(file.url) != file.fingerprint:
            raise _changed(file.url)


def _changed(url: str) -> InputError:
    return InputError(f"{url}: it changed while it was read; build again when it is complete")


_MAX_FILES, _MAX_ROWS = 10, 100  # files without a conversation to pass over, rows to look at
_SET = "set layout: to that of its conversations"


def with_layouts(spec: BuildSpec, inputs: Sequence[InputFile]) -> tuple[BuildSpec, list[InputFile]]:
    """Return a spec and its inputs, in which every source of conversations names its layout.

    Raises InputError if no layout fits the first rows of a source, or if several do.
    """
    layouts = {name: _layout([file for file in inputs if file.source == name]) for name in spec.without_layout()}
    return spec.with_layouts(layouts), [
        replace(file, options={**file.options, "layout": layouts[file.source]}) if file.source in layouts else file
        for file in inputs
    ]


def _layout(files: Sequence[InputFile]) -> str:
    problem = ""
    with naming_source(files[0].source), sharing_files():
        for file in files[:_MAX_FILES]:
            problem = problem or f"{file.url}: no conversation in its first rows; {_SET}"
            for batch in first_rows(file.url, file.options):
                if len(batch.texts) > batch.texts.null_count:
                    return recognized_layout(batch, file.url)
                problem = str(batch.bad[0]) if batch.bad else problem
        raise InputError(problem)


def first_rows(url: str, options: Options) -> Iterator[Rows]:
    """Yield the first rows of a file, whatever a filter keeps; of conversations without a layout, JSON of them."""
    reader = make_reader({**options, "filter": None, "on_error": "skip"})
    for part in islice(reader.partitions(url), 1):
        yield from islice(each_bounded(reader.read(url, part), options["max_bytes"], url), 2)


def recognized_layout(rows: Rows, url: str) -> str:
    """Return the layout of conversations; raise InputError if none or several fit their first rows.

    Args:
        rows: their texts are the JSON of each row.
        url: of their file, for messages.
    """
    values = [json.loads(text) for text in rows.texts.drop_null().to_pylist()[:_MAX_ROWS]]
    try:
        return recognized(values)
    except BadConversation as error:
        raise InputError(f"{url}: {error}") from error
