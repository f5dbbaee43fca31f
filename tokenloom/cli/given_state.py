"""The state of a loader that --state gives: its file, the stores of its datasets, and whether it fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokenloom.errors import SpecError, TokenloomError
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.storage.versions.references import names_version, parse_reference, resolve

if TYPE_CHECKING:  # a command imports the reader when it runs
    from tokenloom.reader.state import LoaderState
    from tokenloom.reader.streams import Stream


def read_state(path: str) -> LoaderState:
    """Return the state in a file; raise SpecError if there is none."""
    from tokenloom.reader.state import decode_state

    try:
        return decode_state(json.loads(read_regular(path)))
    except TokenloomError as error:
        raise SpecError(f"--state {path}: {error}") from error
    except OSError as error:
        raise SpecError(f"--state {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"--state {path}: not JSON; write json.dumps(loader.state_dict()) into it") from error


def samples_taken(stream: Stream, state: LoaderState, path: str) -> int:
    """Return how many samples a state has taken; raise SpecError if the stream is not its own: of another release."""
    from tokenloom.reader.state import check_state

    try:
        return check_state(state, stream.fingerprint())
    except TokenloomError as error:
        raise SpecError(f"--state {path}: {error}") from error


def stores_of(reference: str | None, given: Sequence[str], members: Sequence[str]) -> str | dict[str, str]:
    """Return the store of a state's dataset, or of each member of its mixture; raise SpecError if one is unknown.

    Args:
        reference: its store is that of all that `given` does not name; None without REF.
        given: STORE or MEMBER=STORE.
        members: of the mixture; none for a dataset.
    """
    named = dict(text.partition("=")[::2] for text in given if text.partition("=")[0] in members)
    others = [text for text in given if text.partition("=")[0] not in members]
    if len(others) > 1:
        raise SpecError(f"--store {others[1]}: given twice; write MEMBER=STORE for {', '.join(members) or 'a mixture'}")
    if not others and reference is not None:
        others = [parse_reference(reference).store]
    lacking = [name for name in members if name not in named]
    if not others and (lacking or not members):
        raise SpecError(f"--store: give the store of {f'member {lacking[0]}' if lacking else 'the dataset, or REF'}")
    if not members:
        return others[0]
    return {name: named.get(name) or others[0] for name in members}


def check_same_version(reference: str, path: str, state: LoaderState) -> None:
    """Raise SpecError if a reference names another dataset or, with an @, another version than a state."""
    stream: Any = state["stream"]
    parsed = parse_reference(reference)
    found = f"{parsed.dataset}@{resolve(parsed)[1].version}" if names_version(reference) else parsed.dataset
    if found not in (stream["dataset"], f"{stream['dataset']}@{stream['version']}"):
        raise SpecError(f"--state {path}: it is of {stream['dataset']}@{stream['version']}, and REF names {found}")
