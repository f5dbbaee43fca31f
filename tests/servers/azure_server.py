"""Azurite, Microsoft's emulator of Azure's blob store, in a separate process, on a port that the kernel chooses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTAINER = "corpora"
ACCOUNT = "devstoreaccount1"
# Published by Microsoft for the emulator: no secret.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_INSTALLED = Path(__file__).parents[2] / ".azurite" / "node_modules" / ".bin" / "azurite-blob"


def azurite() -> str | None:
    """Return the program; None if it is not installed: npm install --prefix .azurite azurite."""
    return shutil.which("azurite-blob") or (str(_INSTALLED) if _INSTALLED.exists() and shutil.which("node") else None)


def connection_string(url: str) -> str:
    """Return the options with which clients use a server, or a proxy in front of it, at `url`."""
    scheme = url.partition("://")[0]
    return f"DefaultEndpointsProtocol={scheme};AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={url}/{ACCOUNT};"


@contextmanager
def azure_server(program: str) -> Iterator[str]:
    """Run a server; yields its URL."""
    options = ["--inMemoryPersistence", "--blobPort", "0", "--blobHost", "127.0.0.1", "--skipApiVersionCheck"]
    command = [program, *options, "--disableTelemetry"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ)
    assert process.stdout is not None
    try:
        urls = (re.search(r"http://127\.0\.0\.1:[1-9]\d*", line) for line in process.stdout)
        url = next((found[0] for found in urls if found), "")
        assert url, "Azurite did not start"
        yield url
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(timeout=30)
