"""docs/guides/prefect.md and schedules.md can be followed in a browser, from the form to schedules of a spec file."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from tests.servers.browser import Page
from tests.servers.running import Up, artifact, event, flow_run
from tests.up.walk import walk
from tokenloom.storage.versions.published import published_versions
from tokenloom.storage.versions.references import dataset_store
from tokenloom.wording import duration


@pytest.mark.timeout(1800)
def test_the_pages_on_operating_can_be_followed_by_clicks(up: Up, browser: Page) -> None:
    walk(browser, up.folder, up.url)
    assert_the_build_of_the_form_is_reported(up.folder)


def assert_the_build_of_the_form_is_reported(folder: Path) -> None:
    """Assert that state, event, summary and page report what was published and how to read it."""
    (version,) = published_versions(dataset_store(str(folder / "store"), "first"))
    reference = f"{folder}/store/first@{version}"
    payload = event("tokenloom.dataset.published", "first")
    wanted = {"version": version, "reference": reference, "tag": "latest", "tag_moved": True, "documents": 200}
    wanted |= {"partitions": 1, "partitions_reused": 0}
    assert {name: payload[name] for name in wanted} == wanted
    tokenizer = payload["tokenizer"]
    line = (
        f"published {reference}: {payload['tokens']:,} tokens in 200 documents, {payload['shards']} shards, "
        f"in {duration(payload['seconds'])}; 0 of 1 partition reused; "
        f"tokenizer {tokenizer['name']} ({tokenizer['kind']}), {tokenizer['vocab_size']:,} ids"
    )
    read = f'from tokenloom import TokenDataset\ndata = TokenDataset("{reference}", split="train", seq_len=2048)'
    assert (payload["message"], payload["read"]) == (line, read)
    run, summary = flow_run(UUID(payload["flow_run_id"])), artifact("first-summary")
    assert run.name == "build-first" and run.state is not None
    first, note, *rest = str(run.state.message).splitlines()
    assert (first, "\n".join(rest)) == (line, read)
    assert note.startswith("warning: no document in the split ")
    assert (summary.description, line in summary.data, read in summary.data) == (line, True, True)
    assert f"## first {version}" in summary.data and "The longest step was" in summary.data
    report, catalogue = re.findall(r"\]\(<(http://127\.0\.0\.1:\d+/stores/.+?)>\)", summary.data)
    page = (folder / f"store/first/reports/{version}.html").read_bytes()
    assert page.startswith(b"<!doctype html>") and httpx.get(report, trust_env=False).content == page
    assert f"first/reports/{version}.html" in httpx.get(catalogue, trust_env=False).text
