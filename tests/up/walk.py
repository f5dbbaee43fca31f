"""A newcomer's walk by clicks through docs/guides/prefect.md and schedules.md.

It builds from the form, looks at the run, and makes schedules of a spec file:

    python -m tests.up.walk FOLDER

`tokenloom up` runs in FOLDER, a new one. The pictures of the page are saved in the folder TOKENLOOM_SCREENSHOTS, if it
is set. Raises AssertionError, or TimeoutException of Selenium, where the page promises something else.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.settings import PREFECT_API_URL, temporary_settings
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.builders.datasets import write_parquet
from tests.counts import FULL
from tests.docs.walk import blocks
from tests.servers.browser import Page, chromium
from tests.servers.prefect_servers import migrated_home
from tests.servers.processes import wait_until
from tests.servers.running import running_up
from tokenloom.storage.versions.published import published_versions
from tokenloom.storage.versions.references import dataset_store

_SCHEDULE_SECONDS = 30  # long enough to switch the schedule off after one run: each takes five seconds of a processor
_NIGHTLY = "build-a-spec-file/build-a-spec-file"
_DEPLOYMENT = DeploymentFilter(name=DeploymentFilterName(any_=["build-a-spec-file"]))


def walk(page: Page, folder: Path, api: str) -> None:
    """Follow the page in the folder of a `tokenloom up`."""
    write_parquet(folder / "input" / "a.parquet", [f"text {i} of a newcomer" for i in range(200)])
    page.errors()  # those before this walk
    page.url = api.removesuffix("/api")
    with temporary_settings({PREFECT_API_URL: api}):
        if FULL:
            open_the_form_of_a_file(page)
        build_from_the_form(page, folder)
        look_at_the_run(page)
        write_spec(folder, "scheduled")
        add_schedule(page, "specs/scheduled.yaml")
        wait_until(lambda: not all(run.state.is_scheduled() for run in runs_of_schedules()), interval=1)
        switch_off(page)
        assert published_versions(dataset_store(str(folder / "store"), "scheduled"))
        if FULL:  # in the same dialog as the schedule that is deployed
            write_spec(folder, "books")
            edit_schedule(page, "specs/books.yaml")
        edit_shipped_schedule(page, "specs/scheduled.yaml")
        errors = page.errors()
        assert not errors, errors


def open_the_form_of_a_file(page: Page) -> None:
    """Fill in the first form, whose only field that must be filled in is the path of a spec file."""
    page.open("/")
    page.press("Deployments", "link")
    page.follow("/deployments/deployment/", "build-a-spec-file")
    page.press("Run")
    page.press("Custom run", "menuitem")
    page.fill("spec_file", "specs/news.yaml")
    page.screenshot("ui-form", 1000)


def build_from_the_form(page: Page, folder: Path) -> None:
    """Fill in the form of build-dataset and wait until its run has published."""
    page.open("/")
    page.press("Deployments", "link")
    page.follow("/deployments/deployment/", "build-dataset")
    page.press("Run")
    page.press("Custom run", "menuitem")
    fill_form(page, "first")
    tokenizer = page.field("Tokenizer")
    if "TIKTOKEN_CACHE_DIR" in os.environ:
        page.press("tiktoken", "tab", tokenizer)
        page.fill("Name", "gpt2", tokenizer)
    else:
        page.choose("byte", tokenizer)
    page.submit()
    page.view_run()
    page.press("Logs", "tab")
    page.await_line("Completed")
    assert len(published_versions(dataset_store(str(folder / "store"), "first"))) == 1
    page.await_text("build-first")
    page.screenshot("ui-run")


def fill_form(page: Page, dataset: str) -> None:
    """Fill in what has no default except the tokenizer: one parquet source; paths start from the folder of `up`."""
    page.fill("Dataset", dataset)
    page.fill("Store", "store")
    sources = page.field("Sources")
    page.press("Add item", scope=sources)
    page.press("Parquet", "tab", sources)
    page.fill("Path", "input/*.parquet", sources)


def look_at_the_run(page: Page) -> None:
    """Open the summary of the run on the page."""
    page.press("Artifacts", "tab")
    page.follow("/artifacts/artifact/", "first-summary")
    page.await_text("The longest step was")
    page.screenshot("ui-summary")


def write_spec(folder: Path, dataset: str) -> None:
    """Write the page's spec file for a dataset, with the byte tokenizer because a vocabulary may need a download."""
    (spec,) = (text for language, text in blocks("docs/guides/schedules.md", "Schedule rebuilds") if language == "yaml")
    assert "dataset: news\n" in spec and "{kind: tiktoken, name: gpt2}" in spec
    spec = spec.replace("{kind: tiktoken, name: gpt2}", "byte").replace("dataset: news", f"dataset: {dataset}")
    (folder / "specs").mkdir(exist_ok=True)
    (folder / "specs" / f"{dataset}.yaml").write_text(spec)


def add_schedule(page: Page, spec_file: str) -> None:
    """Save a new schedule of a few seconds on the page of build-a-spec-file: one line of text besides the time."""
    page.open("/")
    page.press("Deployments", "link")
    page.follow("/deployments/deployment/", "build-a-spec-file")
    page.await_text("At 02:00 AM")
    page.press("Schedule")
    dialog = page.dialog()
    page.fill("spec_file", spec_file, dialog)
    page.type("schedule.interval_value", "1")
    page.select("Minutes", "Days", dialog)
    page.screenshot("ui-schedule", 1000)
    page.type("schedule.interval_value", str(_SCHEDULE_SECONDS))
    page.select("Days", "Seconds", dialog)
    save(page, dialog)
    page.await_line(f"Every {_SCHEDULE_SECONDS} seconds")


def runs_of_schedules() -> list[Any]:
    """Return the runs of build-a-spec-file, those to come included."""
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(deployment_filter=_DEPLOYMENT, limit=200)


def switch_off(page: Page) -> None:
    """Switch the schedule off while its first run works, and wait until that has ended."""
    page.toggle(f"toggle Every {_SCHEDULE_SECONDS} seconds")

    def is_idle() -> bool:
        with get_client(sync_client=True) as client:
            is_off = not any(each.active for each in client.read_deployment_by_name(_NIGHTLY).schedules)
            runs = runs_of_schedules()
            for run in runs:
                if is_off and run.state.is_scheduled():  # of the schedule, which made them before
                    client.delete_flow_run(run.id)
        return is_off and all(run.state.is_final() for run in runs)

    wait_until(is_idle, interval=1)


def edit_schedule(page: Page, spec_file: str) -> None:
    """Give the schedule another spec file."""
    page.press_menu(f"Every {_SCHEDULE_SECONDS} seconds", "Edit")
    dialog = page.dialog()
    page.fill("spec_file", spec_file, dialog)
    save(page, dialog)


def save(page: Page, dialog: WebElement) -> None:
    """Save a schedule; the dialog closes once the server has it."""
    page.press("Save", scope=dialog)
    page.wait("closed dialog", lambda: not page.driver.find_elements(By.CSS_SELECTOR, "[role=dialog]"))


def edit_shipped_schedule(page: Page, spec_file: str) -> None:
    """Set the spec file and another hour in the schedule that is deployed."""
    page.press_menu("At 02:00 AM", "Edit")
    dialog = page.dialog()
    page.type("schedule.cron", "0 3 * * *")
    page.fill("spec_file", spec_file, dialog)
    save(page, dialog)
    page.await_line("At 03:00 AM")
    with get_client(sync_client=True) as client:
        (shipped,) = (each for each in client.read_deployment_by_name(_NIGHTLY).schedules if each.slug == "nightly")
    assert shipped.parameters == {"spec_file": spec_file}


if __name__ == "__main__":
    here = Path(sys.argv[1]).absolute()
    here.mkdir(parents=True)
    with (
        chromium("http://127.0.0.1") as page,
        running_up(here / "corpus", f"mark-{uuid.uuid4()}", migrated_home(here)) as (_, api),
    ):
        walk(page, here / "corpus", api)
