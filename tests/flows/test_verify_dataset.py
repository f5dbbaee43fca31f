"""The flow verify-dataset: Completed for an intact version, Failed with the names of the damaged files otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.damaging import Made, make_version
from tests.servers.running import artifact, newest_run
from tokenloom.errors import CheckError
from tokenloom.flows.direct import verify_directly
from tokenloom.flows.version_flows import verify_dataset

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
