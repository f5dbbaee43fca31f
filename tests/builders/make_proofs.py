"""Make the proofs that the package ships: `python -m tests.builders.make_proofs DEFINITIONS FOLDER`.

DEFINITIONS is a JSON file of tokenizers' definitions by the names of their families; paths in it are relative to the
folder that contains it. A proof that FOLDER has for the installed libraries is not made again, one for other versions
is replaced. A vocabulary that can't be proven is named with the reason, and the exit code is then 1.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tokenloom.cores import num_cores
from tokenloom.storage.formats.canonical import read_signed_record, sign_record
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.fast.gigatoken_library import NAME
from tokenloom.tokenizers.fast.known_parts import Unproven
from tokenloom.tokenizers.fast.parts import parts_of
from tokenloom.tokenizers.fast.probe import Pool, prove
from tokenloom.tokenizers.fast.proofs import Proof


def main(definitions: Path, folder: Path) -> int:
    """Make the proofs and return the exit code."""
    exit_code = 0
    # One thread each: the processes use all cores.
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with multiprocessing.get_context("spawn").Pool(num_cores()) as pool:
        for family, definition in json.loads(definitions.read_bytes()).items():
            if path := definition.get("path"):
                definition["path"] = str(definitions.parent / path)
            found = "proven"
            try:
                _make(family, definition, folder, pool.imap)
            except Unproven as error:
                found, exit_code = str(error), 1
            sys.stdout.write(f"{family}: {found}\n")
    return exit_code


def _make(family: str, definition: Mapping[str, Any], folder: Path, pool: Pool) -> None:
    """Write the proof of a tokenizer; raise Unproven if there is none."""
    load = partial(load_tokenizer, definition)
    reference = load()
    parts = parts_of(reference)
    for path in folder.glob(f"*-{parts.key[:16]}.json"):
        known = read_signed_record(path.read_bytes(), str(path), Proof)
        if (known.key, known.library, known.reference) == (parts.key, NAME, reference.backend):
            return
    proof = prove(reference, parts, load, pool)
    (folder / f"{family}-{parts.key[:16]}.json").write_bytes(sign_record(proof))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
