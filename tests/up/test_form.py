"""The form of `tokenloom up` in a real browser: its fields, and what it refuses."""

from __future__ import annotations

import pytest

from tests.servers.browser import Page
from tests.servers.running import Up
from tests.up.walk import fill_form
from tokenloom.flows.build_dataset import build_dataset
from tokenloom.server.deployments import deployment_pages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def form(up: Up, browser: Page) -> Page:
    """The form of build-dataset of a running `tokenloom up`; tests.up.walk comes to it by clicks."""
    browser.url = up.url.removesuffix("/api")
    browser.driver.get(deployment_pages(up.url)["without a file"] + "/run")
    browser.field("Dataset")
    return browser


def test_every_field_of_the_spec_is_in_the_form(form: Page) -> None:
    fields = build_dataset.parameters.model_dump()["definitions"]["BuildSpec"]["properties"].values()
    assert [field["title"] for field in fields if field["title"] not in form.text()] == []
    assert form.tabs(form.field("Tokenizer")) == [
        *("By name", "Bytes", "tiktoken", "Hugging Face", "SentencePiece", "Ids")
    ]
    assert 'type "None"' not in form.text()


def test_a_value_against_the_schema_is_refused_in_the_form(form: Page) -> None:
    """tests/flows/test_build_dataset.py shows how other rules end a run."""
    fill_form(form, "Bad Name")
    form.choose("byte", form.field("Tokenizer"))
    form.submit()
    form.wait("rule", lambda: "does not match" in form.field("Dataset").text)


def test_the_browser_contacts_no_other_host(form: Page) -> None:
    form.open("/v2/blocks/catalog")  # whose blocks have logos elsewhere
    form.await_text("Secret")
    assert form.hosts() == {"127.0.0.1"}  # on this page and those before
