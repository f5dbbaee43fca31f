"""What answers: the stores that were named, and Prefect's server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from tokenloom.cli.doctor.finding import Finding, failed
from tokenloom.errors import StoreError, TokenloomError, message_of
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.versions.references import datasets_in
from tokenloom.wording import counted, first_of, shown_bytes


def of_store(url: str) -> Iterator[Finding]:
    """Yield whether a store answers and takes what a build writes; leaves nothing in it."""
    topic = f"store {url}"
    try:
        store = _open(url)
        store.exists("work")  # one request, with a time limit; a listing has an hour
        names = datasets_in(store)
    except (StoreError, OSError) as error:
        yield failed(topic, message_of(error))
        return
    found = f"answers, {counted(len(names), 'dataset') if names else 'no dataset yet'}"
    try:
        is_exclusive = _takes_writes(store)
    except (TokenloomError, OSError) as error:
        yield failed(topic, f"{found}, but does not take what a build writes: {message_of(error)}")
        return
    free = store.free_bytes()
    yield Finding(topic, f"{found}, takes writes{'' if free is None else f', {shown_bytes(free)} free'}")
    if not is_exclusive:
        advice = "run one build of a dataset at a time"
        yield Finding(topic, "it lets two writers create the same name", "warning", advice)


def _open(url: str) -> Store:
    """Return a store whose requests give up soon."""
    store = open_store(url)
    if store.is_local:
        return store
    from tokenloom.storage.stores.remote import RemoteStore
    from tokenloom.storage.stores.remote_retries import TimeLimits

    return RemoteStore(str(store.root), TimeLimits(tries=2, total_seconds=15.0, read_seconds=7.0))


def _takes_writes(store: Store) -> bool:
    """Return whether one of several writers of a name succeeds; raises an error if the store can't be written.

    In an object store, a folder of its own is written, read, listed and deleted.
    """
    if store.is_local:
        return store.creates_exclusively()
    probe = _open(f"{store.root}/.doctor-{uuid.uuid4().hex}")
    data = probe.place("").encode()
    try:
        is_exclusive = probe.creates_exclusively()
        probe.replace("probe", data)
        if probe.read("probe") != data or "probe" not in probe.names(""):
            raise StoreError(f"{probe.place('')}: what was written is not what is listed and read")
        return is_exclusive
    finally:
        probe.remove_files(list(probe.files_below("")))
        probe.remove_empty_folders("")


def of_prefect() -> Iterator[Finding]:
    """Yield which Prefect server a build would use, whether it answers, and what is deployed on it."""
    from tokenloom.server.prefect_session import known_url, may_have_server

    topic = "Prefect's server"
    try:
        url = known_url() if may_have_server() else None
    except TokenloomError as error:
        yield failed(topic, message_of(error))
        return
    if url is None:
        yield Finding(topic, "none; `tokenloom build` starts one that ends with it, `tokenloom up` keeps one running")
        return
    from tokenloom.server.server_facts import server_facts

    facts = server_facts(url)
    yield Finding(topic, f"{url} answers, version {facts.version}")
    if facts.is_older:
        advice = "upgrade the server first: docs/guides/teams.md"
        yield Finding(topic, f"{facts.version} is older than Prefect here, {facts.client}", "warning", advice)
    if facts.missing:
        found = f"not deployed: {first_of(facts.missing)}; runs from the UI and schedules need them"
        yield Finding("deployments", found, "warning", "tokenloom deploy")
    else:
        yield Finding("deployments", f"all of tokenloom's on {url}")
    if not facts.workers:
        start = f"prefect worker start --pool {facts.pool}"
        yield Finding("workers", f"none is online in the pool {facts.pool}: runs from the UI wait", "warning", start)
    else:
        yield Finding("workers", f"online in the pool {facts.pool}: {first_of(facts.workers)}")
