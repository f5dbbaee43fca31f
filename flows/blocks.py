"""Load stores and credentials from Prefect blocks, so that neither run parameters nor messages contain secrets.

A Secret block contains a JSON object of fsspec options for a protocol, such as {"key": "...", "secret": "..."}. A store
can be given as block://local-file-system/NAME/FOLDER.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import fsspec
from prefect.blocks.core import Block
from pydantic import ValidationError

from tokenloom.errors import SpecError
from tokenloom.spec.blocks import BLOCK_URL, Credentials
from tokenloom.spec.build_spec import BuildSpec

_STORE = f"{BLOCK_URL}local-file-system/"


@contextmanager
def using_credentials(credentials: Sequence[Credentials]) -> Iterator[None]:
    """Give file systems that are opened in the with-block the options of Secret blocks.

    fsspec's own configuration is the one place that tokenloom's stores and the libraries of sources all read. It is
    that of the process, so a worker of a cluster has one thread. It is restored when the block ends.

    Raises SpecError if there is no such Secret block, or its value is not a JSON object.
    """
    options = {entry.protocol: _options(entry) for entry in credentials}
    before = dict(fsspec.config.conf)
    fsspec.config.conf.update(options)
    try:
        yield
    finally:
        fsspec.config.conf.clear()
        fsspec.config.conf.update(before)


def environment_of(credentials: Sequence[Credentials]) -> dict[str, str]:
    """Return the environment for a new process with the same credentials: fsspec reads JSON from FSSPEC_<protocol>."""
    names = {f"FSSPEC_{entry.protocol.upper()}": entry.protocol for entry in credentials}
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(tuple(f"{name}_" for name in names))
    }
    return inherited | {name: json.dumps(fsspec.config.conf[protocol]) for name, protocol in names.items()}


def with_store_of_block(spec: BuildSpec) -> BuildSpec:
    """Return the spec with the folder of its store's block as its store; see store_of_block for errors."""
    return spec.model_copy(update={"store": store_of_block("store", spec.store)})


def store_of_block(key: str, store: str) -> str:
    """Return the folder of a store that is given as a block; any other store unchanged.

    Raises SpecError, which names `key`, if the block does not exist or has no folder.
    """
    if not store.startswith(BLOCK_URL):
        return store
    where = f"{key}: {store}"
    name, *folder = store.removeprefix(_STORE).split("/")
    if not store.startswith(_STORE) or ".." in folder:
        raise SpecError(f"{where}: write {_STORE}NAME or {_STORE}NAME/FOLDER")
    base = _load(f"local-file-system/{name}", where).basepath
    if not base:
        raise SpecError(f"{where}: the block has no basepath; give it one in the UI under Blocks")
    return posixpath.join(str(base), *filter(None, folder))


def credentials_in(text: str) -> list[Credentials]:
    """Return the credentials in a text field, PROTOCOL=BLOCK separated by spaces or lines; raises SpecError."""
    found = []
    for given in text.split():
        protocol, _, block = given.partition("=")
        try:
            found.append(Credentials(protocol=protocol, block=block))
        except ValidationError:
            raise SpecError(f"credentials: {given!r}: write PROTOCOL=BLOCK, such as s3=prod-s3") from None
    return found


def _options(credentials: Credentials) -> dict[str, Any]:
    where = f"credentials of {credentials.protocol}: Secret block {credentials.block!r}"
    value = _load(f"secret/{credentials.block}", where).get()
    if not isinstance(value, dict):
        raise SpecError(f'{where}: its value is not a JSON object such as {{"key": "...", "secret": "..."}}')
    return value


def _load(reference: str, where: str) -> Any:
    try:
        return Block.load(reference, _sync=True)  # type: ignore[call-arg]  # its decorator accepts it
    except ValidationError:
        raise SpecError(f"{where}: this release of Prefect can't read it; create it again in the UI") from None
    except ValueError as error:
        raise SpecError(f"{where}: Prefect has no such block; create it in the UI under Blocks") from error
