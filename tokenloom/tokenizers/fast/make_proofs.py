"""Make the proofs that the package ships: `python -m tokenloom.tokenizers.fast.make_proofs DEFINITIONS FOLDER`.

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
from tokenloom.tokenizers.fast.probe import Pool, Refusal, prove
from tokenloom.tokenizers.fast.proofs import Proof, proof_file_name


def main(definitions: Path, folder: Path) -> int:
    """Make the proofs and return the exit code."""
    refused = {}
    # One thread each: the processes use all cores.
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with multiprocessing.get_context("spawn").Pool(num_cores()) as pool:
        for family, definition in json.loads(definitions.read_bytes()).items():
            if path := definition.get("path"):
                definition["path"] = str(definitions.parent / path)
            try:
                made = _make(family, definition, folder, pool.imap)
            except Unproven as error:
                made = Refusal(str(error))
            if made is not None:
                refused[family] = made
            sys.stdout.write(f"{family}: {made or 'proven'}\n")
    return 1 if refused else 0


def _make(family: str, definition: Mapping[str, Any], folder: Path, pool: Pool) -> Refusal | None:
    """Write the proof of a tokenizer, or return why there is none."""
    load = partial(load_tokenizer, definition)
    reference = load()
    parts = parts_of(reference)
    for path in folder.glob(f"*-{parts.key[:16]}.json"):
        known = read_signed_record(path.read_bytes(), str(path), Proof)
        if (known.key, known.library, known.reference) == (parts.key, NAME, reference.backend):
            return None
    proof = prove(reference, parts, load, lambda num_done, num_jobs: None, pool)
    if isinstance(proof, Refusal):
        return proof
    (folder / proof_file_name(family, proof.key)).write_bytes(sign_record(proof))
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
