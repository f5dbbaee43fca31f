"""The flows of a version: each does what its command does, and shows it in an artifact."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema

from tests.builders.damaging import Made, make_version
from tests.builders.exported import READERS, Exportable
from tests.builders.retention_actors import built_files
from tests.servers.running import artifact, newest_run
from tokenloom.errors import CheckError, FormatError, SpecError
from tokenloom.flows import artifacts
from tokenloom.flows.verify_steps import verify_directly
from tokenloom.flows.version_flows import collect_garbage, export_dataset, verify_dataset
from tokenloom.storage.stores.local import LocalStore
from tokenloom.tasks.verify import DamagedFile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("prefect_server")]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A version that contains every kind of file."""
    return make_version(tmp_path)


def test_an_intact_version_completes_with_the_result_of_the_command(made: Made) -> None:
    spec = made.spec.with_workers(1)
    result = verify_dataset(made.reference, deep=True, spec=spec)
    assert result == verify_directly(made.reference, True, None, 0)
    run = newest_run()
    assert run.state is not None
    assert run.state.is_completed()
    assert run.name == f"verify-{made.reference}"
    page = artifact("data-verification").data
    assert "nothing is damaged" in page
    assert f"{result['documents_encoded_again']:,} documents encoded again" in page


def test_a_damaged_version_fails_and_names_the_files(made: Made) -> None:
    split = made.manifest["splits"]["train"]["shards"]
    names = [f"versions/{made.version}/{shard['name']}" for shard in split]
    for name in names:
        made.store.local(name).write_bytes(b"no shard")
    with pytest.raises(CheckError) as caught:
        verify_dataset(made.reference)
    assert f"{len(names)} damaged: {', '.join(names[:5])}" in str(caught.value)
    run = newest_run()
    assert run.state is not None
    assert run.state.is_failed()
    assert names[0] in str(run.state.message)
    page = artifact("data-verification").data
    assert all(name in page for name in names)
    assert "restore it from a copy" in page


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """A dataset of two versions, whose store is below TOKENLOOM_HOME."""
    built_files(tmp_path)
    monkeypatch.setenv("TOKENLOOM_HOME", str(tmp_path))
    return LocalStore(tmp_path / "store" / "data")


def test_the_form_of_a_collection_has_flat_fields_and_says_that_a_schedule_must_give_the_dataset() -> None:
    schema = parameter_schema(collect_garbage)
    assert schema.required == ["dataset"]
    description = schema.properties["dataset"]["description"]
    assert "Required" not in description
    assert "A schedule must give it, although" in " ".join(description.split())
    assert {"keep_last", "grace", "delete", "credentials"} < set(schema.properties)
    assert not any("$ref" in json.dumps(field) for field in schema.properties.values())


def test_a_collection_deletes_unless_it_is_told_not_to_and_shows_why(store: LocalStore) -> None:
    would = collect_garbage("store/data", keep_last=1, grace="0", delete=False)
    (unused,) = would["deleted"]
    assert unused in store.names("versions")
    assert collect_garbage("store/data/", keep_last=1, grace="0") == would | {"delete": True}
    rows = json.loads(artifact("data-collection").data)
    assert {row["version"]: row["outcome"] for row in rows}[unused] == "deleted"
    assert ("kept", "tagged latest") in [(row["outcome"], row["why"]) for row in rows]
    assert unused not in store.names("versions")


def test_a_mistake_ends_a_collection_and_deletes_nothing(store: LocalStore) -> None:
    with pytest.raises(SpecError, match="grace: 'tomorrow' is not a time"):
        collect_garbage("store/data", grace="tomorrow")
    with pytest.raises(SpecError, match="credentials: 's3': write PROTOCOL=BLOCK, such as s3=prod-s3"):
        collect_garbage("store/data", credentials="gs=a\ns3")
    store.replace("tags/prod/00000001.json", b"{}")
    with pytest.raises(FormatError, match=r"tags/prod/00000001\.json"):
        collect_garbage("store/data", keep_last=0, grace="0")
    assert len(store.names("versions")) == 2


def test_a_run_exports_each_version_into_a_folder_of_its_own(tmp_path: Path) -> None:
    made = Exportable(tmp_path, 50_000)
    result = export_dataset(made.reference, "megatron", f"{tmp_path}/{{version}}", splits="train")
    folder = tmp_path / result["version"]
    assert READERS["megatron"](folder, "train", 50_000)[0] == made.documents["train"]
    assert sorted(path.name for path in folder.glob("*.bin")) == ["train.bin"]
    assert not result["existed"]
    again = export_dataset(made.reference, "megatron", f"{tmp_path}/{{version}}", splits="train")
    assert again == result | {"existed": True}


def test_no_name_of_a_file_counts_as_html_or_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(artifacts, "create_markdown_artifact", lambda text, **_: written.append(text))
    name = "a|<img src=x onerror=alert(1)>`[b](http://c)\n## d\u202e"
    damage = DamagedFile(file=name, what=name, next_step=name)
    result: Any = {"reference": f"{name}@latest", "version": None, "files": 1, "bytes": 1, "documents_encoded_again": 0}
    artifacts.show_verification("data", result | {"damages": [damage], "warnings": [name]})
    (page,) = written
    assert "<" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") == 5
    lines = page.splitlines()
    assert [line for line in lines if line.startswith("## ")] == lines[:1]
    (row,) = [line for line in lines if line.startswith("| a")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 4, "three cells"
    assert not re.search(r"(?<!\\)[`\[]", page)
    assert page.replace("\n", "").isprintable()
