"""The form of `tokenloom up` in a real browser: its fields, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.datasets import write_parquet
from tests.servers.browser import Page
from tests.servers.running import Up
from tests.up.walk import fill_form
from tokenloom.flows.build_dataset import build_dataset
from tokenloom.server.deployments import deployment_pages
from tokenloom.spec.syntax import NAME_PATTERN, RULES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def ui(up: Up, browser: Page) -> tuple[Path, Page]:
    """A running `tokenloom up` with a parquet file in its folder, and a browser on its UI."""
    write_parquet(up.folder / "input" / "a.parquet", [f"text {i}" for i in range(200)])
    browser.url = up.url.removesuffix("/api")
    return up.folder, browser


def open_form(page: Page) -> None:
    """Open the form of build-dataset; tests.up.walk comes to it by clicks."""
    page.driver.get(deployment_pages(f"{page.url}/api")["without a file"] + "/run")
    page.field("Dataset")


def test_a_value_against_the_schema_is_refused_in_the_form(ui: tuple[Path, Page]) -> None:
    """tests/flows/test_build_dataset.py shows how other rules end a run."""
    _, page = ui
    open_form(page)
    fill_form(page, "Bad Name")
    page.choose("byte", page.field("Tokenizer"))
    page.submit()
    page.wait("rule", lambda: RULES[NAME_PATTERN] in page.field("Dataset").text)


def test_every_field_of_the_spec_is_in_the_form(ui: tuple[Path, Page]) -> None:
    _, page = ui
    open_form(page)
    fields = build_dataset.parameters.model_dump()["definitions"]["BuildSpec"]["properties"].values()
    assert [field["title"] for field in fields if field["title"] not in page.text()] == []
    assert page.tabs(page.field("Tokenizer")) == [
        *("By name", "Bytes", "tiktoken", "Hugging Face", "SentencePiece", "Ids")
    ]
    assert 'type "None"' not in page.text()


def test_the_browser_contacts_no_other_host(ui: tuple[Path, Page]) -> None:
    _, page = ui
    for path, text in (("/", "Dashboard"), ("/v2/blocks/catalog", "Secret")):  # whose blocks have logos elsewhere
        page.open(path)
        page.await_text(text)
    assert page.hosts() == {"127.0.0.1"}
