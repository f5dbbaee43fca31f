"""Recognize how the conversations of a source are written, from its first rows, where the spec does not say it.

The plan puts the layout into the spec, so it is part of a version's identity, and into the options with which the files
are read. Whoever reads them again takes it from there, and does not recognize it from files that may have changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from tokenloom.chat.layouts import recognized
from tokenloom.errors import BadConversation, InputError
from tokenloom.tasks.planning.inputs import InputFile
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import Options, Rows, make_reader
from tokenloom.tasks.sources.files.shared_files import sharing_files
from tokenloom.tasks.sources.naming import naming_source

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec.build_spec import BuildSpec

_MAX_FILES, _MAX_ROWS = 10, 100  # that are looked at: files without a conversation, rows of the first that has one
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
        rows: texts that are JSON of what the rows hold.
        url: of their file, for messages.
    """
    values = [json.loads(text) for text in rows.texts.drop_null().to_pylist()[:_MAX_ROWS]]
    try:
        return recognized(values)
    except BadConversation as error:
        raise InputError(f"{url}: {error}") from error
