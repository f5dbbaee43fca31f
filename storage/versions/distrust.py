"""Encoders that a dataset no longer uses, because they gave other ids than the reference library once.

`distrusted/ENCODER@VERSION@FINGERPRINT`, one file for an encoder and a tokenizer, is created exclusively and stays when
work/ is deleted. It holds what was found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from tokenloom.errors import DistrustedEncoder
from tokenloom.storage.stores.store import Store

_FOLDER = "distrusted"
_DIGITS = 16  # of a tokenizer's fingerprint


def distrust(store: Store, encoder: str, fingerprint: str, why: str) -> None:
    """Mark an encoder as distrusted.

    Args:
        store: the dataset's store.
        encoder: its name and version, with a space between them.
        fingerprint: the tokenizer's.
        why: what was found, for people.
    """
    name = "@".join([*encoder.split(" "), fingerprint[:_DIGITS]])
    with contextlib.suppress(FileExistsError):
        store.create(f"{_FOLDER}/{name}", f"{why}\n".encode())


def distrusted_encoders(store: Store, fingerprint: str) -> frozenset[str]:
    """Return the encoders that are distrusted for a tokenizer, by name and version."""
    marks = (name.split("@") for name in store.lengths(_FOLDER))
    return frozenset(" ".join(mark[:-1]) for mark in marks if mark[-1] == fingerprint[:_DIGITS])


def refuse_distrusted(store: Store, encoders: Collection[str], fingerprint: str) -> None:
    """Raise DistrustedEncoder if one of the fast encoders that encoded some spills is distrusted for a tokenizer."""
    if encoders and (found := sorted(distrusted_encoders(store, fingerprint).intersection(encoders))):
        raise DistrustedEncoder(f"{store.place(_FOLDER)}: {found[0]} was distrusted while this build used it")
