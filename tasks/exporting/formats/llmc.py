"""llm.c's data files, which tasks/sources/tokens/llmc.py describes.

Our documents end with the end-of-text id. A file with one before its first document and none after its last one has
one before each document, and no more tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tokenloom.errors import SpecError
from tokenloom.storage.formats.arrays import TOKEN_DTYPES, AnyArray
from tokenloom.tasks.exporting.documents import Documents
from tokenloom.tasks.exporting.formats.base import ExportFormat, ExportUnit, VersionFacts, no_masks
from tokenloom.tasks.exporting.hashed_file import HashedFile
from tokenloom.tasks.sources.tokens.llmc import GPT2, HEADER_INTS, LLAMA3, VERSIONS

_PART_TOKENS = 100_000_000  # as modded-nanogpt's files
_MAX_BYTES = 2**31 - 1  # llm.c seeks with an int


class Llmc(ExportFormat):
    """DATASET_SPLIT_000000.bin and so on; `validation` is called val."""

    name = "llmc"

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return what is lost, and what llm.c requires of files."""
        return [
            f"llm.c marks documents by a leading end-of-text id, {facts.tokenizer.eot_id:,}; each file must have more "
            "tokens than ranks x batch x sequence length",
            *no_masks(facts, self.name),
        ]

    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """See ExportFormat.files."""
        return (f"{facts.dataset}_{'val' if split == 'validation' else split}_{index:06}.bin",)

    def parts(self, documents: Documents, facts: VersionFacts) -> list[Documents]:
        """Return files of about 100 million tokens."""
        parts = documents.cut(max(1, -(-documents.num_tokens // _PART_TOKENS)))
        if any(4 * HEADER_INTS + part.num_tokens * _id_bytes(facts) > _MAX_BYTES for part in parts):
            raise SpecError("llmc: a document makes a file of 2 GiB or more; use megatron")
        return parts

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Sequence[HashedFile]) -> None:
        """Write the header and the ids."""
        (file,) = files
        num_bytes = _id_bytes(facts)
        magic = LLAMA3 if num_bytes == 4 else GPT2
        header = np.zeros(HEADER_INTS, "<i4")
        header[:3] = magic, VERSIONS[magic], unit.documents.num_tokens
        file.write(header)
        for ids in _leading(unit, facts.tokenizer.eot_id):
            file.write(ids.astype(TOKEN_DTYPES[num_bytes], copy=False))


def _leading(unit: ExportUnit, eot_id: int) -> Iterator[AnyArray]:
    """Yield the ids of a file: an end-of-text id, then all but the last one, which must be another."""
    last: int = eot_id
    for piece in unit.documents.pieces():
        yield np.array([last], piece.ids.dtype)
        yield piece.ids[:-1]
        last = int(piece.ids[-1])


def _id_bytes(facts: VersionFacts) -> int:
    return max(2, facts.token_bytes)
