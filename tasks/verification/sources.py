"""The sources of a published version: the spec that names them, and rows read again as the build read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenloom.errors import SpecError
from tokenloom.storage.formats.manifest import BUILD, Manifest, given_options
from tokenloom.storage.formats.version_files import decode_build
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path
from tokenloom.tasks.planning.inputs import InputFile
from tokenloom.tasks.rows.rules import form_of, transformed
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import Rows, SourceReader, make_reader
from tokenloom.tasks.sources.base import PlaceOf
from tokenloom.tasks.sources.conversations import WANTED

if TYPE_CHECKING:
    from tokenloom.spec.build_spec import BuildSpec

# fields of a version's `chat` that a spec does not have
_OF_BUILD = ("template", "special_tokens", "rules")


def checked_spec(spec: BuildSpec, manifest: Manifest, name: str) -> BuildSpec:
    """Return a spec with the layouts that its version has recognized.

    Raises SpecError if the version was built from another spec; excluded contents and templates are not compared.
    """
    spec = _with_layouts(spec, manifest)
    mine, built = _comparable(spec.identity()), _comparable(manifest.spec)
    if differing := sorted(key for key in mine.keys() | built.keys() if mine.get(key) != built.get(key)):
        raise SpecError(f"{name}: the version was built from another spec, which differs in {', '.join(differing)}")
    return spec


def _with_layouts(spec: BuildSpec, manifest: Manifest) -> BuildSpec:
    sources: Any = manifest.spec["sources"]
    layouts = {source["name"]: source.get("layout") for source in sources}
    return spec.with_layouts({name: layouts.get(name) for name in spec.without_layout()})


def _comparable(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec's identity without the hashes of files that it names, and with lists in place of tuples."""
    documents = {key: value for key, value in identity["documents"].items() if key != "exclude"}
    chat = {key: value for key, value in identity.get("chat", {}).items() if key not in _OF_BUILD}
    compared = given_options({**identity, "documents": documents, "chat": chat})
    return json.loads(json.dumps(compared))  # type: ignore[no-any-return]


def recorded_spec(store: Store, manifest: Manifest) -> BuildSpec:
    """Return the spec in build.json, whose secrets are redacted. Errors of reading and checking it are not translated.

    Anyone who can write to the store can write that file. It may therefore name sources, but no code to run here.
    """
    from tokenloom.spec.build_spec import BuildSpec

    path = version_path(manifest.version, BUILD)
    build = decode_build(store.read(path), store.place(path))
    spec = checked_spec(BuildSpec.model_validate(build.spec), manifest, BUILD)
    if spec.documents.transform:
        raise SpecError("documents.transform is code, which runs only if --spec names it")
    return spec


def read_rows(file: InputFile, wanted: Sequence[int], transform: str | None) -> Iterator[tuple[Rows, PlaceOf]]:
    """Yield (rows, how a message names one) until all wanted rows are found or the file ends.

    Args:
        file: the input.
        wanted: rows, sorted.
        transform: applied to each text, as the build did.
    """
    reader = make_reader({**file.options, WANTED: frozenset(wanted)})
    place_of = partial(reader.place, file.url)
    numbers, num_found = np.array(wanted, np.uint64), 0
    for batch in each_bounded(located(reader, file.url, wanted), file.options["max_bytes"], file.url):
        here = np.flatnonzero(np.isin(batch.rows, numbers))
        if len(here):
            found = batch.take(here)
            texts = transformed(found.texts, found.rows, transform, place_of, form_of(file.options))
            yield replace(found, texts=texts), place_of
        num_found += len(here)
        if num_found == len(wanted):
            return  # a file that is one partition need not be read to its end


def located(reader: SourceReader, url: str, rows: Sequence[int]) -> Iterator[Rows]:
    """Yield the rows of the parts of a file that hold these rows, which are sorted."""
    for part in reader.locate(url, rows):
        yield from reader.read(url, part)
