"""A page of another address can neither read from `tokenloom up` nor start a run; a run calls only admitted code."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.responses import PlainTextResponse
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.deployments import run_deployment

from tests.builders.datasets import write_parquet
from tests.servers.browser import FOREIGN_NAME, Page
from tests.servers.running import Up, parameters
from tokenloom.server.app import for_own_pages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Each way in which a page can ask: with JSON, in the forms that need no leave of the server, and by a WebSocket.
_ASK_ALL = """
const [api, run, parameters, done] = arguments;
const read = [];
const ask = async (path, options) => {
    try {
        const answer = await fetch(api + path, options);
        if (answer.type !== "opaque" && answer.status !== 403) read.push([path, answer.status, await answer.text()]);
    } catch (error) {}
};
const body = JSON.stringify({name: "by-another-page", parameters, state: {type: "PAUSED"}});
const socket = new Promise(end => {
    const opened = new WebSocket(api.replace("http", "ws") + "/events/out");
    opened.onopen = () => { read.push("a WebSocket"); end(); };
    opened.onerror = end;
});
(async () => {
    await ask("/admin/version", {});
    await ask("/flows/filter", {method: "POST", body: "{}", headers: {"content-type": "application/json"}});
    for (const mode of ["cors", "no-cors"])
        for (const data of [body, new Blob([body]), new Blob([body], {type: "application/json"})])
            await ask(run, {method: "POST", mode, body: data});
    await socket;
    done(read);
})();
"""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The address of another server of this machine, with an empty page."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _EmptyPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class _EmptyPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("address", ["another port", "a name that points here", "the server's own"])
def test_only_a_page_of_the_server_reads_or_starts_a_run(address: str, up: Up, browser: Page, elsewhere: str) -> None:
    own = up.url.removesuffix("/api")
    by_name = own.replace("127.0.0.1", FOREIGN_NAME)
    page, asked = {
        "another port": (elsewhere, own),
        "a name that points here": (f"{by_name}/api/health", by_name),
        "the server's own": (f"{own}/api/health", own),
    }[address]
    named = FlowRunFilter(name=FlowRunFilterName(any_=["by-another-page"]))
    with get_client(sync_client=True) as client:
        build = client.read_deployment_by_name("build-dataset/build-dataset")
        browser.driver.get(page)
        path = f"/deployments/{build.id}/create_flow_run"
        read = browser.driver.execute_async_script(_ASK_ALL, f"{asked}/api", path, parameters(up.folder, "asked"))
        runs = client.read_flow_runs(flow_run_filter=named)
        for run in runs:
            client.delete_flow_run(run.id)
    browser.errors()  # of the requests that were refused
    assert [bool(read), bool(runs)] == [address == "the server's own"] * 2, (read, runs)


@pytest.mark.parametrize(
    ("headers", "is_admitted"),
    [
        ({}, True),
        ({"host": "localhost:9000"}, True),
        ({"host": "LOCALHOST:9000", "origin": "http://localhost:9000"}, True),
        ({"host": "[::1]", "origin": "https://[::1]"}, True),
        ({"host": "loom.example", "origin": "https://loom.example"}, False),  # not among the names
        ({"host": "prefect.example", "origin": "https://prefect.example"}, True),
        ({"host": "localhost:9000", "origin": "http://localhost:9001"}, False),
        ({"host": "localhost:9000", "origin": "null"}, False),
        ({"host": "localhost.evil.test"}, False),
        ({"host": "127.0.0.1@evil.test"}, False),
        ({"host": "[::1"}, False),
        ({"host": ""}, False),
    ],
)
def test_own_names_have_any_port_and_a_page_asks_where_it_came_from(
    headers: dict[str, str], is_admitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_UP_HOSTS", "prefect.example, other.example")

    async def answer() -> int:
        transport = httpx.ASGITransport(for_own_pages(PlainTextResponse("admitted")))
        async with httpx.AsyncClient(transport=transport) as client:
            return (await client.post("http://127.0.0.1:4200/api", headers=headers)).status_code

    assert asyncio.run(answer()) == (200 if is_admitted else 403)


def test_a_deployment_calls_only_functions_that_its_worker_admits(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "ran"
    asked = parameters(up.folder, "code", documents={"transform": {"function": "subprocess:getoutput", "version": "1"}})
    write_parquet(Path(asked["spec"]["sources"][0]["path"]), [f"touch {file}"])
    variables = {"command": f"touch {file}", "env": {"TOKENLOOM_TRANSFORMS": "subprocess"}}
    run: Any = run_deployment(
        "build-dataset/build-dataset", parameters=asked, job_variables=variables, timeout=300, poll_interval=1
    )
    assert run.state.is_failed(), run.state
    assert (
        "documents.transform.function: subprocess:getoutput is code, and the runs of a deployment call only functions "
        "of the modules in TOKENLOOM_TRANSFORMS; if you trust subprocess, set TOKENLOOM_TRANSFORMS=subprocess where "
        "the worker starts, or build with `tokenloom build` there"
    ) in run.state.message
    assert not file.exists()
