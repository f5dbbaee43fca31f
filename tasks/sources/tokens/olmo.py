"""OLMo-core's token files: raw ids in .npy (without numpy's header), documents in .csv.gz, masks of one byte a token.

X.csv.gz beside X.npy has a line "start,end" for each document, perhaps with more fields. labels_mask_X.npy beside
token_ids_X.npy is its mask, as open-instruct names it. Both may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from tokenloom.errors import InputError, message_of
from tokenloom.storage.formats.arrays import Int64s, token_dtype
from tokenloom.tasks.sources.base import INDEX, MASK, Options
from tokenloom.tasks.sources.files import open_decompressed
from tokenloom.tasks.sources.tokens.base import MISMATCH, Layout, Side, TokenFormat
from tokenloom.tasks.sources.tokens.nanogpt import count_ids

IDS, MASKS = "token_ids", "labels_mask"  # with which the names of token files and of their masks begin
LINES = ".csv.gz"  # in place of .npy
_INFER = "or delete the lines, to infer where documents end"


class Format(TokenFormat):
    """X.npy, X.csv.gz; `dtype` is by default the narrowest for the vocabulary, as in OLMo-core."""

    name = "olmo"
    suffix = ".npy"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._known: tuple[str, Layout, Int64s] | None = None  # of the file used last: its lines are slow to read

    def check_name(self, url: str) -> None:
        """See TokenFormat.check_name; a mask whose token file does not match is not an input either."""
        super().check_name(url)
        name = url.rpartition("/")[2]
        if name.startswith(MASKS):
            ids = IDS + name.removeprefix(MASKS)
            raise InputError(f"{url}: a mask, of which the path does not match the token file {ids}; name that, too")

    def sides(self, url: str) -> Sequence[Side]:
        """See TokenFormat.sides."""
        folder, slash, name = url.rpartition("/")
        sides = [Side(INDEX, _lines_of(url), is_required=False)]
        if name.startswith(IDS):
            mask = f"{folder}{slash}{MASKS}{name.removeprefix(IDS)}"
            sides.append(Side(MASK, mask, is_required=False))
        return sides

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout."""
        return self._read(url)[0]

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """See TokenFormat.bounds."""
        return self._read(url)[1][start : end + 1]

    def _read(self, url: str) -> tuple[Layout, Int64s]:
        """Return the layout of a file and the bounds of all its documents, [0] without an index."""
        if self._known is None or self._known[0] != url:
            dtype = np.dtype(self.options.get("dtype") or token_dtype(self.vocab_size)).newbyteorder("<")
            num_tokens = count_ids(url, dtype)
            bounds = np.zeros(1, np.int64) if self.infers else _read_lines(_lines_of(url), num_tokens, url)
            self._known = url, Layout(len(bounds) - 1, num_tokens, dtype), bounds
        return self._known[1:]


def _lines_of(url: str) -> str:
    return url.removesuffix(Format.suffix) + LINES


def _read_lines(index: str, num_tokens: int, url: str) -> Int64s:
    """Return the bounds of documents, whose lines must cover the tokens in order, (num_documents + 1,)."""
    parts, count = [np.zeros(1, np.int64)], 0
    for starts, ends in _lines(index):
        begins = np.append(parts[-1][-1:], ends[:-1])
        wrong = (starts != begins) | (ends <= starts) | (ends > num_tokens)
        if wrong.any():
            i = int(wrong.argmax())
            raise InputError(
                f"{index}, line {count + i + 1}: {starts[i]},{ends[i]} is not a document from token {begins[i]} on "
                f"in the {num_tokens:,} of {url}: {MISMATCH}, {_INFER}"
            )
        parts.append(ends)
        count += len(ends)
    if (last := int(parts[-1][-1])) != num_tokens:
        raise InputError(
            f"{index}: its documents end at token {last:,}, and {url} has {num_tokens:,}: {MISMATCH}, {_INFER}"
        )
    return np.concatenate(parts)


def _lines(index: str) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield the first two fields of the lines; raises InputError if a line has other fields."""
    names = ["f0", "f1"]
    convert = pacsv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names, pa.int64()), null_values=[])
    read = pacsv.ReadOptions(use_threads=False, autogenerate_column_names=True)
    parse = pacsv.ParseOptions(newlines_in_values=True)  # of the fields after the first two
    with open_decompressed(index) as file:
        try:
            for batch in pacsv.open_csv(pa.PythonFile(file, "r"), read, parse, convert):
                if len(batch):
                    yield batch.column(0).to_numpy(), batch.column(1).to_numpy()
        except pa.ArrowException as error:  # a broken gzip is an OSError
            raise InputError(
                f"{index}: not lines of start,end: {message_of(error)}; copy the file again, {_INFER}"
            ) from error
