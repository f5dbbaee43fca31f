"""Name the line of the spec file whose source an InputError is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tokenloom.errors import InputError
from tokenloom.spec.build_spec import BuildSpec


@contextmanager
def add_source_line(spec: BuildSpec) -> Iterator[None]:
    """Prefix the message of an InputError with the file, line and name of its source, if the spec came from a file.

    Example: "news.yaml:7: source wiki: /data/wiki.parquet: no column 'body'; ..."
    """
    try:
        yield
    except InputError as error:
        if error.source and (place := spec.source_place(error.source)):
            message, name = str(error.args[0]), f"source {error.source}: "
            error.args = (f"{place}: {name}{message.removeprefix(name)}", *error.args[1:])
        raise
