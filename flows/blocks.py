"""Stores and credentials from blocks of Prefect: never parameters of a run, and in no message.

A Secret block holds a JSON object of fsspec's options for a protocol, such as {"key": "...", "secret": "..."}. A store
may be named as block://remote-file-system/NAME/FOLDER or block://local-file-system/NAME/FOLDER.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import fsspec
from prefect.blocks.core import Block

from tokenloom.errors import SpecError
from tokenloom.spec import BuildSpec
from tokenloom.spec_runner import BLOCK_URL, Credentials

_STORE_KINDS = ("local-file-system", "remote-file-system")


def use_credentials(credentials: Sequence[Credentials]) -> None:
    """Let every file system that this process opens from now on take its credentials from the blocks.

    Raises SpecError if there is no such block, or its value is no JSON object.
    """
    for one in credentials:
        where = f"credentials of {one.protocol}: Secret block {one.block!r}"
        value = _load(f"secret/{one.block}", where).get()
        if not isinstance(value, dict):
            raise SpecError(f'{where}: its value is no JSON object such as {{"key": "...", "secret": "..."}}')
        _use(one.protocol, value)


def with_store_of_block(spec: BuildSpec) -> BuildSpec:
    """Return the spec with the store that a block names, whose settings are used from now on.

    Raises SpecError if there is no such block.
    """
    if not spec.store.startswith(BLOCK_URL):
        return spec
    kind, name, *folder = [*spec.store.removeprefix(BLOCK_URL).split("/"), ""]
    if kind not in _STORE_KINDS:
        raise SpecError(f"store: {spec.store}: write block://KIND/NAME, with a kind of {' or '.join(_STORE_KINDS)}")
    block: Any = _load(f"{kind}/{name}", f"store: {spec.store}")
    base = str(block.basepath or "").rstrip("/")
    if settings := getattr(block, "settings", None):
        _use(base.partition("://")[0], settings)
    return spec.model_copy(update={"store": "/".join(part for part in (base, *folder) if part)})


def environment_of(protocols: Sequence[str]) -> dict[str, str]:
    """Return the variables from which a new process takes this one's options; fsspec reads them when imported."""
    return {f"FSSPEC_{name.upper()}": json.dumps(fsspec.config.conf[name]) for name in protocols}


def _use(protocol: str, options: dict[str, Any]) -> None:
    fsspec.config.conf[protocol] = fsspec.config.conf.get(protocol, {}) | options


def _load(reference: str, where: str) -> Any:
    try:
        return Block.load(reference, _sync=True)  # type: ignore[call-arg]  # its decorator takes it
    except ValueError as error:
        raise SpecError(f"{where}: Prefect knows no such block; make it in the UI under Blocks") from error
