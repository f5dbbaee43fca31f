"""Warnings about the input files of a build: files that were left out, and suspicious ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tokenloom.errors import InputError, StoreError
from tokenloom.spec.syntax import escaped
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.stores import is_object
from tokenloom.tasks.building.inputs import HIDDEN, InputFile, LeftOut
from tokenloom.tasks.sizes import runs_of
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.sources.listing import match
from tokenloom.tasks.sources.reader import naming_source
from tokenloom.wording import counted, first_of, shown_bytes

if TYPE_CHECKING:
    from tokenloom.tasks.building.plan import BuildPlan

HELD_OUT = re.compile(r"(?<![a-z])(test|val|valid|validation|dev|eval)(?![a-z])", re.IGNORECASE)  # in a path
_TOKEN_CHARS = 4  # bytes of text in a token, usually
_TABLE_LEVELS = 3  # folders to look in, at least: that of a file, and those above it
_MAX_LOOKED = 12  # folders of a source; in a store, each look is three requests
_TABLES = {  # format -> a file in the folder of a table, above its data files
    "Delta Lake": "_delta_log/*.json",
    "Iceberg": "metadata/*.metadata.json",
    "Hudi": ".hoodie/hoodie.properties*",
}


def left_out_messages(left_out: LeftOut, *, only_unused: bool = False) -> Iterator[str]:
    """Yield a line for each pattern of `leave_out` and for files passed over, or only for patterns without a file."""
    unused = (
        "matches no file of the source; check it: it is compared with paths below the folder before the first wildcard"
    )
    for source, patterns in left_out.items():
        for pattern, num_files in patterns.items():
            if num_files and only_unused:
                continue
            if pattern == HIDDEN:
                files = counted(num_files, "file")
                yield f"source {source}: its wildcards pass over {files} below names that begin with _ or ."
            else:
                effect = f"leaves out {counted(num_files, 'file')}" if num_files else unused
                yield f"leave_out of {source}: {pattern!r} {effect}"


def input_messages(inputs: Sequence[InputFile]) -> Iterator[str]:
    """Yield warnings about the input files before they are read, one line each."""
    yield from _held_out_messages(inputs)
    yield from table_messages(inputs)
    first = {file.source: file for file in reversed(inputs) if file.options["kind"] == "tokens"}
    for file in reversed(first.values()):
        with naming_source(file.source):
            notes = make_reader(file.options).notes(file.url)
        yield from notes


def disk_messages(plan: BuildPlan) -> list[str]:
    """Return a warning if the file system of the store has less room than the texts of a build usually take.

    How much a filter leaves out and a tokenizer compresses is not known here: a sample shows it, see estimate_build.
    """
    build = plan.build
    free, width = build.store.free_bytes(), token_dtype(build.tokenizer.vocab_size).itemsize + build.has_classes
    runs = plan.partitions if runs_of(len(plan.partitions)) else []
    usual = sum(part.num_bytes for part in (*plan.missing, *runs, *plan.partitions)) * width // _TOKEN_CHARS
    if free is None or plan.spec.limit is not None or usual <= free:
        return []
    return [
        f"{build.store.root}: its file system has {shown_bytes(free)} free, and the spills and shards of so much text "
        f"usually take {shown_bytes(usual)}; `tokenloom plan` estimates it from a sample, and a build that runs out of "
        "space continues when the same command runs again"
    ]


def _held_out_messages(inputs: Sequence[InputFile]) -> Iterator[str]:
    """Yield a warning for each source with files named as data to evaluate on, unless the build has no others."""
    named: dict[str, list[str]] = {}
    for file in inputs:
        if HELD_OUT.search(file.path) and "split" not in file.options:
            named.setdefault(file.source, []).append(file.path)
    if sum(map(len, named.values())) == len(inputs):
        return
    for source, paths in named.items():
        yield (
            f"source {source}: {first_of(paths, 3)}: named as data to evaluate on, but splits are shares of all "
            f'documents, so most of it goes to train; leave_out: ["{paths[0]}"] leaves it out, and a spec of its own '
            "makes it a dataset"
        )


def table_messages(inputs: Sequence[InputFile]) -> Iterator[str]:
    """Yield a warning for each source of parquet files below a table, whose log says which files it has."""
    above: dict[str, set[str]] = {}  # source -> folders of its files, and those above them up to the source's root
    for file in inputs:
        if file.options["kind"] == "parquet":
            folder, levels = file.url.rpartition("/")[0], max(file.path.count("/") + 1, _TABLE_LEVELS)
            above.setdefault(file.source, set()).update(folder.rsplit("/", up)[0] for up in range(levels))
    for source, folders in above.items():
        highest = sorted(folders, key=lambda folder: (folder.count("/"), folder))[:_MAX_LOOKED]
        if table := next(filter(None, map(_table_in, highest)), None):
            yield (
                f"source {source}: {table}: every file that matches is read, also those with rows that a table deleted "
                "or replaced; export the table to parquet to read its current rows"
            )


def _table_in(folder: str) -> str:
    """Return that a folder is a table of a format; "" if it is none, or can't be listed."""
    is_folder = folder.startswith(("/", "file://", "local://"))  # a folder above a URL may be none: "hf:/"
    if is_folder or (is_object(folder) and folder.partition("://")[2]):
        for name, mark in _TABLES.items():
            with suppress(InputError, StoreError):
                if match(f"{escaped(folder)}/{mark}")[1]:
                    return f"{folder} is a table of {name}"
    return ""
