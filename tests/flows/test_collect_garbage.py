"""The flow collect-garbage: it deletes as `tokenloom gc --delete` does, and its run shows what and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prefect.utilities.callables import parameter_schema

from tests.builders.retention_actors import built_files
from tests.servers.running import artifact
from tokenloom.errors import FormatError, SpecError
from tokenloom.flows.version_flows import collect_garbage
from tokenloom.storage.stores.local import LocalStore

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """A dataset of two versions, whose store is below TOKENLOOM_HOME."""
    built_files(tmp_path)
    monkeypatch.setenv("TOKENLOOM_HOME", str(tmp_path))
    return LocalStore(tmp_path / "store" / "data")


def test_its_form_has_flat_fields_and_says_that_a_schedule_must_give_the_dataset() -> None:
    schema = parameter_schema(collect_garbage)
    assert schema.required == ["dataset"]
    description = schema.properties["dataset"]["description"]
    assert "Required" not in description
    assert "A schedule must give it, although" in " ".join(description.split())
    assert {"keep_last", "grace", "delete", "credentials"} < set(schema.properties)
    assert not any("$ref" in json.dumps(field) for field in schema.properties.values())


def test_a_run_deletes_unless_it_is_told_not_to_and_shows_why(store: LocalStore) -> None:
    would = collect_garbage("store/data", keep_last=1, grace="0", delete=False)
    (unused,) = would["deleted"]
    assert unused in store.names("versions")
    assert collect_garbage("store/data/", keep_last=1, grace="0") == would | {"delete": True}
    rows = json.loads(artifact("data-collection").data)
    assert {row["version"]: row["outcome"] for row in rows}[unused] == "deleted"
    assert ("kept", "tagged latest") in [(row["outcome"], row["why"]) for row in rows]
    assert unused not in store.names("versions")


def test_a_mistake_ends_the_run_and_deletes_nothing(store: LocalStore) -> None:
    with pytest.raises(SpecError, match="grace: 'tomorrow' is not a time"):
        collect_garbage("store/data", grace="tomorrow")
    with pytest.raises(SpecError, match="credentials: 's3': write PROTOCOL=BLOCK, such as s3=prod-s3"):
        collect_garbage("store/data", credentials="gs=a\ns3")
    store.replace("tags/prod/00000001.json", b"{}")
    with pytest.raises(FormatError, match=r"tags/prod/00000001\.json"):
        collect_garbage("store/data", keep_last=0, grace="0")
    assert len(store.names("versions")) == 2
