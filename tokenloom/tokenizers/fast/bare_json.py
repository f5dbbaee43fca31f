"""A tokenizer.json as gigatoken gets it, kept in the machine's cache: parsing, checking and writing it takes 0.4 s."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from tokenloom.storage.formats.canonical import sha256_of_bytes
from tokenloom.tokenizers.fast.known_parts import bare_content, normalizes, routed_spellings
from tokenloom.tokenizers.fast.space_runs import MARKER, SpaceRuns, find_space_runs
from tokenloom.tokenizers.machine_records import KeptRecord, find_kept_record, installed_code, write_kept_record


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
    """Return what gigatoken gets of a tokenizer.json: as this machine keeps it, or else made and kept.

    Args:
        data: content of the file.

    Raises Unproven as check_tokenizer_json.
    """
    name, code = f"bare-json-{sha256_of_bytes(data)[:32]}", installed_code()
    if kept := find_kept_record(name, code, BareJson):
        return kept
    made = _make(name, code, data)
    write_kept_record(made)
    return made


def _make(name: str, code: str, data: bytes) -> BareJson:
    content = bare_content(data)  # checks its parts
    spellings, run_ids, marker_id = routed_spellings(content), list[int](), 0
    if found := find_space_runs(content):
        runs, content = found
        spellings, run_ids, marker_id = [*spellings, MARKER], runs.ids.tolist(), runs.marker_id
    text = json.dumps({**content, "normalizer": None}, ensure_ascii=False)
    return BareJson(name, code, text, spellings, normalizes(content), run_ids, marker_id)
