"""Every kind of files over every protocol: files of one size and of one content lose no row.

Servers name a file's content by an ETag; web servers make it of time and length, so files of one size that were written
in one second share theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, make_spec
from tests.builders.equal_files import (
    ARRAY_RECORDS,
    IDS,
    IMPORTS,
    OWN_TEXTS,
    SAVED,
    TEXTS,
    Form,
    Written,
    assert_complete,
    rows_at,
)
from tests.builders.hub_builds import HubBuilds
from tests.counts import every
from tests.drivers.hub_driver import HubCommands
from tests.servers.dataset_hub import DatasetHub
from tests.servers.stores import Place, azure_place, folder_of, google_place, s3_place, web_place
from tokenloom.errors import InputError
from tokenloom.spec.build_spec import BuildSpec

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # adlfs and gcsfs do
_FORMS: dict[str, Form] = {**TEXTS, **OWN_TEXTS, "saved": SAVED, **IMPORTS}
_WEB = {"http": "content", "http, time and length": "time and length", "http, weak": "weak"}
_PROTOCOLS = ("folder", *_WEB, "s3", "gs", "az", "hf")
#: Protocol, form, and whether the source is a pattern. Over http, only a pattern leads to a folder.
_CASES = [
    (protocol, form, as_glob)
    for form in _FORMS
    for protocol in _PROTOCOLS
    for as_glob in (True, False)
    if as_glob or form != "saved" or protocol not in _WEB
]
Sources = list[dict[str, Any]]


class Places:
    """The places of all protocols, whose servers start when they are first asked for.

    Args:
        folder: for files.
        request: for the fixtures of servers.
    """

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self._folder, self._request = folder, request
        self._places: dict[str, Place] = {}
        self._started = ExitStack()
        self._patch = pytest.MonkeyPatch()
        for name in ("NO_PROXY", "no_proxy"):
            self._patch.setenv(name, "127.0.0.1")

    def stop(self) -> None:
        """Stop the servers, and forget what the environment says of them."""
        self._started.close()
        self._patch.undo()

    def __getitem__(self, protocol: str) -> Place:
        if protocol not in self._places:
            self._places[protocol] = self._start(protocol)
        return self._places[protocol]

    def _start(self, protocol: str) -> Place:
        if protocol == "folder":
            return folder_of(self._folder)
        if protocol == "s3":
            return s3_place(self._request.getfixturevalue("shared_proxy").url, self._patch)
        if protocol == "gs":
            return self._started.enter_context(google_place(self._patch))
        if protocol == "az":
            return self._started.enter_context(azure_place(self._patch))
        return self._started.enter_context(web_place(self._folder, _WEB[protocol]))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Places]:
    """The places of all protocols."""
    places = Places(tmp_path_factory.mktemp("places"), request)
    yield places
    places.stop()


def files_of(form: Form, num_files: int = 3) -> dict[str, Written]:
    """Return files of one size and other rows, and one more with the content of the first, by their names."""
    equal = form.of_equal_size(num_files)
    equal.append(equal[0])
    return {f"train-{i}": file for i, file in enumerate(equal)}


def contents_of(files: dict[str, Written]) -> dict[str, bytes]:
    """Return the contents of files by their paths."""
    return {f"data/{name}{suffix}": content for name, file in files.items() for suffix, content in file.parts.items()}


def places_of_rows(files: dict[str, Written]) -> dict[tuple[str, int], str]:
    """Return the rows of files by the paths that a version gives them."""
    return rows_at({f"{name}{next(iter(file.parts))}": file for name, file in files.items()})


def spec_of(folder: Path, form: Form, paths: list[str]) -> BuildSpec:
    """Return a spec with a source for each path."""
    return make_spec(folder / "store", _sources(form, paths), **_fields(form))


def _sources(form: Form, paths: list[str]) -> Sources:
    return [{**form.options, "path": path} for path in paths]


def _fields(form: Form) -> dict[str, Any]:
    return {"splits": {"train": 1.0}, **({"tokenizer": IDS} if form.holds_ids else {})}


def paths_of(root: str, form: Form, files: dict[str, Written], *, as_glob: bool) -> list[str]:
    """Return the paths of sources: one pattern, or one for each file."""
    if as_glob:
        return [f"{root}/data/train-*{form.suffix}"]
    return [f"{root}/data/{name}{form.suffix}" for name in files]


@pytest.mark.parametrize(("protocol", "name", "as_glob"), [case for case in every(7, _CASES) if case[0] != "hf"])
def test_no_row_of_files_of_one_size_is_lost(
    protocol: str, name: str, as_glob: bool, places: Places, tmp_path: Path
) -> None:
    form = _FORMS[name]
    files = files_of(form)
    root = places[protocol].publish(contents_of(files))
    spec = spec_of(tmp_path, form, paths_of(root, form, files, as_glob=as_glob))
    assert_complete(spec, build(spec).version, places_of_rows(files))


@pytest.mark.parametrize(("protocol", "name", "as_glob"), [case for case in every(7, _CASES) if case[0] == "hf"])
def test_no_row_of_files_of_one_size_on_the_hub_is_lost(
    protocol: str, name: str, as_glob: bool, hub: DatasetHub, on_hub: HubCommands, tmp_path: Path
) -> None:
    form = _FORMS[name]
    files = files_of(form)
    dataset = f"matrix/{name.replace(', ', '-').replace(' ', '-')}-{as_glob}"
    hub.commit(dataset, contents_of(files))
    sources = _sources(form, paths_of(f"{protocol}://datasets/{dataset}", form, files, as_glob=as_glob))
    data = HubBuilds(hub, on_hub, tmp_path, *sources, **_fields(form))
    assert_complete(data.spec, data.build()["version"], places_of_rows(files))


def test_array_records_of_one_size_are_read_from_a_folder_and_from_nowhere_else(places: Places, tmp_path: Path) -> None:
    files = files_of(ARRAY_RECORDS)
    for as_glob in (True, False):
        root = places["folder"].publish(contents_of(files))
        spec = spec_of(tmp_path, ARRAY_RECORDS, paths_of(root, ARRAY_RECORDS, files, as_glob=as_glob))
        assert_complete(spec, build(spec).version, places_of_rows(files))
    root = places["http"].publish(contents_of(files))
    with pytest.raises(InputError, match="array_record reads only files on this machine; copy them"):
        build(spec_of(tmp_path, ARRAY_RECORDS, paths_of(root, ARRAY_RECORDS, files, as_glob=False)))


@pytest.mark.parametrize("protocol", [protocol for protocol in _PROTOCOLS if protocol != "hf"])
def test_a_builder_of_the_package_reads_files_over_every_protocol(
    protocol: str, places: Places, tmp_path: Path
) -> None:
    files = files_of(_FORMS["jsonl"])
    root = places[protocol].publish(contents_of(files))
    source = {"kind": "huggingface", "name": "json", "data_files": f"{root}/data/*.jsonl"}
    spec = make_spec(tmp_path / "store", [source], splits={"train": 1.0})
    assert_complete(spec, build(spec).version, places_of_rows(files))
