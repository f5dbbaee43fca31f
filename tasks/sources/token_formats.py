"""The formats of token files, each as the tools of a trainer write them. Numbers are little-endian.

| format | ids | documents | learned |
|---|---|---|---|
| megatron | X.bin | X.idx | |
| olmo | X.npy, without numpy's header | X.csv.gz: lines "start,end", perhaps with more fields | labels_mask_X.npy |
| llmc | X.bin, after a header of 256 int32 | begin with the end-of-text id | |
| nanogpt | X.bin | end with the end-of-text id | |
| datatrove | X.ds; X.ds.metadata has the type and number | X.ds.index: the end of each, as u64 | X.ds.loss |
| huggingface | column `input_ids` of Arrow or parquet | rows | `labels` that are not -100, columns of MASKS |

A mask has a byte for each token, 1 if it is learned. The files beside X may be missing, except X.idx.
"""

from __future__ import annotations

import re
import struct
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from tokenloom.errors import InputError, message_of
from tokenloom.storage.formats.arrays import TOKEN_DTYPES, AnyDtype, Int64s, offsets_of, token_dtype
from tokenloom.tasks.sources.base import INDEX, MASK, REPAIR, Options
from tokenloom.tasks.sources.files import input_bytes, open_decompressed, open_input
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut
from tokenloom.tasks.sources.tokens import Layout, TokenFormat, compare, count_values, read_values

_HEAD_BYTES = 4
_METADATA_BYTES = 65_536


class Megatron(TokenFormat):
    """Megatron's indexed dataset: PREFIX.bin with the ids, and PREFIX.idx with the lengths of its sequences.

    The .idx, without alignment: 9 bytes of magic, u64 version, u8 code of the type, u64 sequences, u64 documents + 1,
    i32 lengths, i64 byte offsets, i64 first sequence of each document and, last, the number of sequences. A document is
    one sequence or several, which are joined.
    """

    suffix = ".bin"
    required = (INDEX,)
    MAGIC, VERSION, HEAD = b"MMIDIDX\0\0", 1, struct.Struct("<9sQBQQ")
    TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # noqa: RUF012
    LENGTH = np.dtype("<i4")
    OFFSET = np.dtype("<i8")

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See TokenFormat.files; a path may be the prefix alone, as Megatron's own options are."""
        is_prefix = not path.endswith((self.suffix, "*"))
        return super().files(path.removesuffix(".idx") + self.suffix if is_prefix else path, leave_out)

    def sides(self, url: str) -> dict[str, str]:
        """See TokenFormat.sides."""
        return {INDEX: url.removesuffix(".bin") + ".idx"}

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout."""
        index = self.sides(url)[INDEX]
        with open_input(index) as file:
            dtype, _, num_documents = self._read_head(file, index)
        return Layout(num_documents, count_values(url, dtype), dtype)

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """See TokenFormat.bounds; raises InputError unless each sequence begins where the one before it ends."""
        index = self.sides(url)[INDEX]
        with open_input(index) as file:
            dtype, num_sequences, _ = self._read_head(file, index)
            offsets_at = self.HEAD.size + num_sequences * self.LENGTH.itemsize
            at = offsets_at + (num_sequences + start) * self.OFFSET.itemsize
            firsts = read_values(file, index, at, end - start + 1, self.OFFSET)
            if firsts.min() < 0 or firsts.max() > num_sequences or (np.diff(firsts) < 0).any():
                raise InputError(
                    f"{index}: the first sequences of documents [{start:,}, {end:,}) do not ascend; {REPAIR}"
                )
            first = max(0, int(firsts[0]) - 1)  # documents without a sequence are where this one ends
            count = int(firsts[-1]) - first
            lengths = read_values(file, index, self.HEAD.size + first * self.LENGTH.itemsize, count, self.LENGTH)
            offsets = read_values(file, index, offsets_at + first * self.OFFSET.itemsize, count, self.OFFSET)
        bounds = offsets_of(lengths)
        bounds += int(offsets[0]) // dtype.itemsize if count else 0
        if (lengths < 0).any() or (offsets != bounds[:-1] * dtype.itemsize).any():
            raise InputError(f"{index}: sequences [{first:,}, {first + count:,}) do not follow each other; {REPAIR}")
        return bounds[firsts - first]  # type: ignore[no-any-return]

    def _read_head(self, file: IO[bytes], index: str) -> tuple[AnyDtype, int, int]:
        """Return the type of ids, the number of sequences and that of documents of an open .idx."""
        data = file.read(self.HEAD.size).ljust(self.HEAD.size, b"\0")
        magic, version, code, num_sequences, num_bounds = self.HEAD.unpack(data)
        if (magic, version) != (self.MAGIC, self.VERSION) or code not in self.TYPES or not num_bounds:
            raise InputError(f"{index}: not an .idx of Megatron, version 1, of an integer type; check the file")
        lengths = num_sequences * self.LENGTH.itemsize
        offsets = (num_sequences + num_bounds) * self.OFFSET.itemsize
        compare(index, input_bytes(index), "its head", self.HEAD.size + lengths + offsets, "bytes")
        return np.dtype(self.TYPES[code]), num_sequences, num_bounds - 1


class Olmo(TokenFormat):
    """OLMo-core's X.npy and X.csv.gz; `dtype` is by default the narrowest for the vocabulary, as there.

    The mask of token_ids_X.npy is labels_mask_X.npy, as open-instruct names it.
    """

    suffix = ".npy"
    IDS, MASKS = "token_ids", "labels_mask"  # with which the names of token files and of their masks begin
    LINES = ".csv.gz"  # in place of .npy

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._known: tuple[str, Int64s] | None = None  # the last file: its lines are slow to read

    def check_name(self, url: str) -> None:
        """See TokenFormat.check_name; a mask whose token file does not match is not an input either."""
        super().check_name(url)
        name = url.rpartition("/")[2]
        if name.startswith(self.MASKS):
            ids = self.IDS + name.removeprefix(self.MASKS)
            raise InputError(f"{url}: a mask, of which the path does not match the token file {ids}; name that, too")

    def sides(self, url: str) -> dict[str, str]:
        """See TokenFormat.sides."""
        folder, slash, name = url.rpartition("/")
        sides = {INDEX: url.removesuffix(self.suffix) + self.LINES}
        if name.startswith(self.IDS):
            sides[MASK] = f"{folder}{slash}{self.MASKS}{name.removeprefix(self.IDS)}"
        return sides

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout."""
        dtype = self.id_type(token_dtype(self.vocab_size).name)
        return Layout(None if self.infers else len(self._lines(url)) - 1, _count_ids(url, dtype), dtype)

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """See TokenFormat.bounds."""
        return self._lines(url)[start : end + 1]

    def _lines(self, url: str) -> Int64s:
        """Return the bounds of all documents of a file, (num_documents + 1,)."""
        if self._known is None or self._known[0] != url:
            self._known = url, self._read_lines(self.sides(url)[INDEX])
        return self._known[1]

    def _read_lines(self, index: str) -> Int64s:
        names = ["f0", "f1"]
        types = dict.fromkeys(names, pa.int64())
        convert = pacsv.ConvertOptions(include_columns=names, column_types=types, null_values=[])
        read = pacsv.ReadOptions(use_threads=False, autogenerate_column_names=True)
        parse = pacsv.ParseOptions(newlines_in_values=True)  # fields after the first two may have them
        with open_decompressed(index) as file:
            try:
                table = pacsv.read_csv(pa.PythonFile(file, "r"), read, parse, convert)
            except pa.ArrowException as error:  # a broken gzip is an OSError
                problem = f"not lines of start,end: {message_of(error)}"
                raise InputError(f"{index}: {problem}; copy the file again, or delete it") from error
        starts, ends = (column.to_numpy() for column in table.columns)
        bounds = np.append(0, ends)
        if (wrong := (starts != bounds[:-1]) | (ends <= starts)).any():
            i = int(wrong.argmax())
            problem = f"{starts[i]},{ends[i]} is not a document from token {bounds[i]} on"
            raise InputError(f"{index}, line {i + 1}: {problem}; copy the file again, or delete it")
        return bounds


class Llmc(TokenFormat):
    """llm.c's data files; the header says the type of ids, and how many there are.

    Magic 20240520 (version 1) holds uint16: llm.c, modded-nanogpt, nemo-automodel. 20240801 (version 7) holds uint32,
    for llm.c's train_llama3.py. 278895051 (version 1) holds 2 or 4 bytes an id, header[3] says which, for
    nemo-automodel. llm.c's tools cut a document where a file is full: its parts are documents of their own here.
    """

    suffix = ".bin"
    eot_leads = True
    HEADER_INTS = 256
    GPT2, LLAMA3, AUTOMODEL = 20240520, 20240801, 278895051
    VERSIONS = {GPT2: 1, LLAMA3: 7, AUTOMODEL: 1}  # noqa: RUF012

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout; compares the header with the length of the file."""
        with open_input(url) as file:
            header = read_values(file, url, 0, self.HEADER_INTS, np.dtype("<i4"))
        magic, version, count, width = header[:4].tolist()
        width = {self.GPT2: 2, self.LLAMA3: 4}.get(magic, width)
        if self.VERSIONS.get(magic) != version or width not in (2, 4):
            raise InputError(f"{url}: it begins with {magic}, {version}, not a header of llm.c; check the format")
        compare(url, input_bytes(url), "its header", header.nbytes + count * width, "bytes")
        return Layout(None, count, TOKEN_DTYPES[width], header.nbytes)


class NanoGpt(TokenFormat):
    """nanoGPT's train.bin and val.bin; `dtype` is that of a script that writes others than nanoGPT's 16 bits.

    The meta.pkl beside it is never opened, because reading a pickle runs what it says.
    """

    suffix = ".bin"

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout; only the length of such a file says how many ids it holds."""
        if not self.options.get("dtype") and self.vocab_size > 2**16:
            raise InputError(f"{url}: nanoGPT's 16 bits can't hold {self.vocab_size:,} ids; set dtype")
        dtype = self.id_type("uint16")
        return Layout(None, _count_ids(url, dtype), dtype)


class Datatrove(TokenFormat):
    """datatrove's X.ds and the files beside it; without metadata, `dtype` or the vocabulary says the type of ids.

    The first line of X.ds.metadata has the tokenizer and the bytes of an id, TOKENIZER|2, its next line the tokens.
    """

    suffix = ".ds"
    METADATA = "metadata"
    BESIDE = {INDEX: ".index", MASK: ".loss", METADATA: ".metadata"}  # noqa: RUF012 # suffixes of the files beside X.ds
    END = np.dtype("<u8")

    def sides(self, url: str) -> dict[str, str]:
        """See TokenFormat.sides."""
        return {role: url + suffix for role, suffix in self.BESIDE.items()}

    def notes(self, url: str) -> list[str]:
        """See TokenFormat.notes; its name does not say whether `decode` is that tokenizer."""
        if self.METADATA not in self.options["has"]:
            return super().notes(url)
        made = f"its metadata says that {self._metadata(url)[0]} made the ids; check that `tokenizer` means the same"
        return [*super().notes(url), f"{url}: {made}"]

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout; compares the tokens with those of the metadata."""
        dtype = self.id_type("uint16" if self.vocab_size <= 2**16 else "uint32")
        if self.METADATA in self.options["has"]:
            _, dtype, described = self._metadata(url)
            compare(url, _count_ids(url, dtype), f"{url}.metadata", described, "tokens")
        num_documents = None if self.infers else count_values(f"{url}.index", self.END)
        return Layout(num_documents, _count_ids(url, dtype), dtype)

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """See TokenFormat.bounds; one above the largest int64 becomes negative."""
        index = f"{url}.index"
        first = max(0, start - 1)
        with open_input(index) as file:
            ends = read_values(file, index, first * self.END.itemsize, end - first, self.END).astype(np.int64)
        return ends if start else np.append(0, ends)

    def _metadata(self, url: str) -> tuple[str, AnyDtype, int]:
        """Return the name of the tokenizer, the type of ids and the number of tokens."""
        with open_input(f"{url}.metadata") as file:
            lines = file.read(_METADATA_BYTES).decode(errors="replace").split("\n")
        name, _, width = lines[0].rpartition("|")
        if width not in ("2", "4") or len(lines) < 2 or not re.fullmatch("[0-9]{1,20}", lines[1]):
            raise InputError(
                f"{url}.metadata: not metadata of datatrove, which says TOKENIZER|2 or TOKENIZER|4, and the tokens in "
                "its next line; copy the file again, or delete it and set dtype"
            )
        return name, TOKEN_DTYPES[int(width)], int(lines[1])


def _count_ids(url: str, dtype: AnyDtype) -> int:
    """Return how many ids a file has; raises InputError if the last one is cut, or if it begins with a header."""
    with open_input(url) as file:
        head = file.read(_HEAD_BYTES)
    if head == b"\x93NUM" or int.from_bytes(head, "little") in Llmc.VERSIONS:
        raise InputError(
            f"{url}: it begins with a header, not with ids; write numpy's array with tofile(), or set format: llmc"
        )
    return count_values(url, dtype)
