"""Make the proofs that the package ships: `python -m tests.builders.make_proofs DEFINITIONS PROOFS`.

DEFINITIONS is a JSON file of tokenizers' definitions by the names of their families; paths in it are relative to the
folder that contains it. A proof that the file PROOFS has for the installed libraries is not made again, one for other
versions is replaced. A vocabulary that can't be proven is named with the reason, and the exit code is then 1.
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

from tokenloom.process import num_cores
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.fast import Unproven
from tokenloom.tokenizers.fast.parts import parts_of
from tokenloom.tokenizers.fast.probe import Pool, prove
from tokenloom.tokenizers.fast.proofs import installed_library


def main(definitions: Path, proofs: Path) -> int:
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
                _make(family, definition, proofs, pool.imap)
            except Unproven as error:
                found, exit_code = str(error), 1
            sys.stdout.write(f"{family}: {found}\n")
    return exit_code


def _make(family: str, definition: Mapping[str, Any], path: Path, pool: Pool) -> None:
    """Add the proof of a tokenizer to a file; raise Unproven if there is none."""
    load = partial(load_tokenizer, definition)
    reference = load()
    parts = parts_of(reference)
    proofs = json.loads(path.read_bytes()) if path.exists() else {}
    made = {"key": parts.key, "library": installed_library(), "reference": reference.backend}
    if any(made.items() <= proof.items() for proof in proofs.values()):
        return
    proofs[family] = made | {"odd": prove(reference, parts, load, pool).odd}
    lines = [f"  {json.dumps(name)}: {json.dumps(proof)}" for name, proof in sorted(proofs.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
