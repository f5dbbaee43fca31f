"""A tokenizer.json as gigatoken gets it, kept in the machine's cache: parsing, checking and writing it takes 0.4 s."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from tokenloom.storage.formats.canonical import sha256_of_bytes
from tokenloom.tokenizers.fast.known_parts import bare_content, normalizes, routed_spellings
from tokenloom.tokenizers.fast.space_runs import MARKER, SpaceRuns, find_space_runs
from tokenloom.tokenizers.machine_records import KeptRecord, find_kept, installed_code, keep


@dataclass(frozen=True, slots=True)
class BareJson(KeptRecord):
    """The file, and what must be done with a text besides encoding it.

    `content` is JSON. Texts with one of `spellings` are left to the reference. `normalizes` says whether the others get
    normal form C first. `run_ids` are the ids of runs of spaces that a marker with `marker_id` replaces, see SpaceRuns;
    there may be none.
    """

    content: str
    spellings: list[str]
    normalizes: bool
    run_ids: list[int]
    marker_id: int

    def space_runs(self) -> SpaceRuns | None:
        """Return the runs of spaces that a marker replaces, None if there are none."""
        return SpaceRuns(np.array(self.run_ids, np.uint32), self.marker_id) if self.run_ids else None


def bare_json(data: bytes) -> BareJson:
    """Return a tokenizer.json as gigatoken gets it; raise Unproven as check_tokenizer_json.

    Args:
        data: content of the file.
    """
    name, code = f"bare-json-{sha256_of_bytes(data)[:32]}", installed_code("gigatoken")
    if kept := find_kept(name, code, BareJson):
        return kept
    made = _make(data, code or "")
    if code is not None:
        keep(name, made)
    return made


def _make(data: bytes, code: str) -> BareJson:
    content = bare_content(data)  # checks its parts
    spellings, is_normalized = routed_spellings(content), normalizes(content)
    run_ids, marker_id = [], 0
    if found := find_space_runs(content):
        runs, content = found
        run_ids, marker_id = runs.ids.tolist(), runs.marker_id
        spellings = [*spellings, MARKER]
    text = json.dumps({**content, "normalizer": None}, ensure_ascii=False)
    return BareJson(code, text, spellings, is_normalized, run_ids, marker_id)
