"""The layouts of sources of conversations that do not name theirs: recognized from their first rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from tokenloom.chat.layouts import recognized
from tokenloom.errors import BadConversation, InputError, naming_source
from tokenloom.tasks.planning.inputs import InputFile
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import Rows, make_reader
from tokenloom.tasks.sources.files.shared_files import sharing_files

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec.build_spec import BuildSpec

_NUM_ROWS = 100


def with_layouts(spec: BuildSpec, inputs: Sequence[InputFile]) -> tuple[BuildSpec, list[InputFile]]:
    """Return a spec and its inputs, in which every source of conversations names its layout if it has a row.

    Raises InputError if the first rows of a source have no layout, or several.
    """
    layouts = {name: _layout([file for file in inputs if file.source == name]) for name in spec.without_layout()}
    return spec.with_layouts(layouts), [
        replace(file, options={**file.options, "layout": layouts[file.source]}) if file.source in layouts else file
        for file in inputs
    ]


def _layout(files: Sequence[InputFile]) -> str | None:
    with naming_source(files[0].source), sharing_files():
        for file in files:
            for batch in _batches(file):
                values = [json.loads(text) for text in islice(batch.texts.drop_null().to_pylist(), _NUM_ROWS)]
                if values:
                    return _recognized(values, file)
                if batch.bad:
                    raise InputError(str(batch.bad[0]))
    return None


def _batches(file: InputFile) -> Iterator[Rows]:
    reader = make_reader({**file.options, "on_error": "skip"})
    for part in reader.partitions(file.url):
        yield from each_bounded(reader.read(file.url, part), file.options["max_bytes"], file.url)


def _recognized(values: list[object], file: InputFile) -> str:
    try:
        return recognized(values)
    except BadConversation as error:
        raise InputError(f"{file.url}: {error}") from error
