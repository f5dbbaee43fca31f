"""The UI of `tokenloom up` in a real browser: the form, a run watched to its end, its artifacts, and refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.builders.datasets import write_parquet
from tests.servers.browser import Page
from tests.servers.running import Up, event
from tests.up.walk import fill_form
from tokenloom.cli.main import main
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


def message_of_the_command_line(folder: Path, dataset: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the rule for a dataset's name as `tokenloom build` words it."""
    source = "sources:\n  - kind: parquet\n    path: input/*.parquet\n"
    (folder / "spec.yaml").write_text(f"dataset: {dataset}\nstore: store\n{source}tokenizer: {{kind: byte}}\n")
    assert main(["build", str(folder / "spec.yaml"), "--direct"]) != 0
    (rule,) = re.findall(r"dataset: (.+); got", capsys.readouterr().err)
    return str(rule)


def test_a_wrong_value_is_refused_in_the_form_or_ends_the_run_with_the_words_of_the_command_line(
    ui: tuple[Path, Page], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = ui
    open_form(page)
    fill_form(page, "Bad Name")
    page.fill("Filter", "score >=", page.field("Sources"))
    page.fill("Share", "0.5", page.field("Splits"))
    page.choose("byte", page.field("Tokenizer"))
    page.submit()
    rule = RULES[NAME_PATTERN]
    page.wait("rule", lambda: rule in page.field("Dataset").text)  # of the schema
    assert message_of_the_command_line(folder, "Bad Name", capsys) == f"must be {rule}"
    page.fill("Dataset", "abcdef0123456789")
    page.submit()
    page.view_run()
    page.await_line("Failed")
    page.press("Details", "tab")
    page.await_text(message_of_the_command_line(folder, "abcdef0123456789", capsys))
    page.await_text("shares must add up to 1, not 0.52")
    page.await_text("filter")
    failed = event("tokenloom.dataset.failed", "unknown")  # as the name is invalid
    assert (failed["state"], failed["error"]) == ("failed", "ParameterTypeError")
    assert "shares must add up to 1, not 0.52" in failed["message"] and "\n" not in failed["message"]


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
