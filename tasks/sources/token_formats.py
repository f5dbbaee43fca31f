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
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from tokenloom.errors import InputError, message_of
from tokenloom.storage.formats.arrays import TOKEN_DTYPES, AnyDtype, Int64s, token_dtype
from tokenloom.tasks.sources.base import INDEX, MASK, REPAIR, Options
from tokenloom.tasks.sources.files import input_bytes, open_decompressed, open_input
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut
from tokenloom.tasks.sources.tokens import MISMATCH, Layout, TokenFormat, count_values, read_values

_HEAD_BYTES = 8
_METADATA_BYTES = 65_536


class _Index(NamedTuple):
    """The head of an .idx of Megatron, the bytes at which its offsets and documents begin, and its length."""

    dtype: AnyDtype
    num_sequences: int
    num_documents: int
    offsets: int
    documents: int
    num_bytes: int


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
    LENGTH, OFFSET = np.dtype("<i4"), np.dtype("<i8")

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See TokenFormat.files; a path may be the prefix alone, as Megatron's own options are."""
        is_prefix = not path.endswith((self.suffix, "*"))
        return super().files(path.removesuffix(".idx") + self.suffix if is_prefix else path, leave_out)

    def sides(self, url: str) -> dict[str, str]:
        """See TokenFormat.sides."""
        return {INDEX: url.removesuffix(".bin") + ".idx"}

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout; compares where the last sequence ends with the length of the .bin."""
        index, num_bytes = self.sides(url)[INDEX], input_bytes(url)
        with open_input(index) as file:
            head = self._read_head(file, index)
            described = 0
            if last := head.num_sequences:
                length = read_values(file, index, head.offsets - self.LENGTH.itemsize, 1, self.LENGTH)
                offset = read_values(file, index, head.documents - self.OFFSET.itemsize, 1, self.OFFSET)
                described = int(offset[0]) + int(length[0]) * head.dtype.itemsize
            first, end = (
                int(read_values(file, index, at, 1, self.OFFSET)[0])
                for at in (head.documents, head.num_bytes - self.OFFSET.itemsize)
            )
        if described != num_bytes:
            raise InputError(
                f"{index}: its sequences end at byte {described:,}, and {url} has {num_bytes:,} bytes: {MISMATCH}"
            )
        if (first, end) != (0, last):
            raise InputError(f"{index}: its documents are sequences [{first}, {end}) of [0, {last}); {REPAIR}")
        return Layout(head.num_documents, num_bytes // head.dtype.itemsize, head.dtype)

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """See TokenFormat.bounds."""
        index = self.sides(url)[INDEX]
        with open_input(index) as file:
            head = self._read_head(file, index)
            at = head.documents + start * self.OFFSET.itemsize
            firsts = read_values(file, index, at, end - start + 1, self.OFFSET)
            first, last = int(firsts[0]), int(firsts[-1])
            if not 0 <= first <= last <= head.num_sequences or (np.diff(firsts) < 0).any():
                raise InputError(
                    f"{index}: the first sequences of documents [{start:,}, {end:,}) do not ascend; {REPAIR}"
                )
            before = max(0, first - 1)  # the first sequence must begin where this one ends
            at = self.HEAD.size + before * self.LENGTH.itemsize
            lengths = read_values(file, index, at, last - before, self.LENGTH)
            at = head.offsets + before * self.OFFSET.itemsize
            offsets = read_values(file, index, at, last - before, self.OFFSET)
        ends = self._checked_ends(index, before, lengths, offsets, head.dtype, input_bytes(url))
        return (ends // head.dtype.itemsize)[firsts - before]  # type: ignore[no-any-return]

    def _read_head(self, file: IO[bytes], index: str) -> _Index:
        """Return the head of an open .idx, compared with its length."""
        num_bytes = input_bytes(index)
        if num_bytes < self.HEAD.size:
            raise InputError(f"{index}: {num_bytes} bytes are too few for an .idx: it was cut; copy the file again")
        file.seek(0)
        magic, version, code, num_sequences, num_bounds = self.HEAD.unpack(file.read(self.HEAD.size))
        if (magic, version) != (self.MAGIC, self.VERSION):
            raise InputError(
                f"{index}: not an .idx of Megatron, version 1: it does not begin with MMIDIDX; check the file"
            )
        if code not in self.TYPES:
            raise InputError(f"{index}: type {code} of its ids is not an integer type of Megatron; {REPAIR}")
        offsets = self.HEAD.size + num_sequences * self.LENGTH.itemsize
        documents = offsets + num_sequences * self.OFFSET.itemsize
        end = documents + num_bounds * self.OFFSET.itemsize
        if num_bounds < 1 or end != num_bytes:
            raise InputError(
                f"{index}: {num_sequences:,} sequences and {num_bounds:,} bounds of documents need {end:,} bytes, and "
                f"it has {num_bytes:,}: it was cut or changed; copy the file again"
            )
        return _Index(np.dtype(self.TYPES[code]), num_sequences, num_bounds - 1, offsets, documents, end)

    @staticmethod
    def _checked_ends(
        index: str, first: int, lengths: Int64s, offsets: Int64s, dtype: AnyDtype, num_bytes: int
    ) -> Int64s:
        """Return the bytes at which n sequences begin and, last, where the last one ends, (n + 1,).

        Raises InputError unless each begins where the one before it ends, the first of the file at 0.
        """
        ends = offsets + lengths.astype(np.int64) * dtype.itemsize
        begins = np.concatenate([offsets[:1] if first else [0], ends[:-1]])
        is_wrong = (lengths < 0) | (offsets < 0) | (ends > num_bytes) | (offsets % dtype.itemsize != 0)
        is_wrong |= offsets != begins[: len(offsets)]
        if is_wrong.any():
            i = int(is_wrong.argmax())
            raise InputError(
                f"{index}: sequence {first + i:,}, at byte {offsets[i]:,} with {lengths[i]:,} tokens, does not begin "
                f"where the one before it ends; {REPAIR}"
            )
        return np.concatenate([offsets[:1], ends]) if len(ends) else np.zeros(1, np.int64)


class Olmo(TokenFormat):
    """OLMo-core's X.npy and X.csv.gz; `dtype` is by default the narrowest for the vocabulary, as there.

    The mask of token_ids_X.npy is labels_mask_X.npy, as open-instruct names it.
    """

    suffix = ".npy"
    IDS, MASKS = "token_ids", "labels_mask"  # with which the names of token files and of their masks begin
    LINES = ".csv.gz"  # in place of .npy

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._known: tuple[str, Layout, Int64s] | None = None  # the last file: its lines are slow to read

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
        return self._read(url)[0]

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """See TokenFormat.bounds."""
        return self._read(url)[1][start : end + 1]

    def _read(self, url: str) -> tuple[Layout, Int64s]:
        """Return the layout of a file and the bounds of all its documents, [0] without an index."""
        if self._known is None or self._known[0] != url:
            dtype = self.id_type(token_dtype(self.vocab_size).name)
            num_tokens = _count_ids(url, dtype)
            bounds = np.zeros(1, np.int64) if self.infers else self._read_lines(url, num_tokens)
            self._known = url, Layout(len(bounds) - 1, num_tokens, dtype), bounds
        return self._known[1:]

    def _read_lines(self, url: str, num_tokens: int) -> Int64s:
        """Return the bounds of documents, whose lines must cover the tokens in order, (num_documents + 1,)."""
        index, infer = self.sides(url)[INDEX], "or delete the lines, to infer where documents end"
        names, parts, count = ["f0", "f1"], [np.zeros(1, np.int64)], 0
        convert = pacsv.ConvertOptions(
            include_columns=names, column_types=dict.fromkeys(names, pa.int64()), null_values=[]
        )
        read = pacsv.ReadOptions(use_threads=False, autogenerate_column_names=True)
        parse = pacsv.ParseOptions(newlines_in_values=True)  # fields after the first two may have them
        with open_decompressed(index) as file:
            try:
                for batch in pacsv.open_csv(pa.PythonFile(file, "r"), read, parse, convert):
                    starts, ends = batch.column(0).to_numpy(), batch.column(1).to_numpy()
                    begins = np.append(parts[-1][-1:], ends[:-1])[: len(ends)]
                    wrong = (starts != begins) | (ends <= starts) | (ends > num_tokens)
                    if wrong.any():
                        i = int(wrong.argmax())
                        raise InputError(
                            f"{index}, line {count + i + 1}: {starts[i]},{ends[i]} is not a document from token "
                            f"{begins[i]} on in the {num_tokens:,} of {url}: {MISMATCH}, {infer}"
                        )
                    parts.append(ends)
                    count += len(ends)
            except pa.ArrowException as error:  # a broken gzip is an OSError
                raise InputError(
                    f"{index}: not lines of start,end: {message_of(error)}; copy the file again, {infer}"
                ) from error
        bounds = np.concatenate(parts)
        if bounds[-1] != num_tokens:
            raise InputError(
                f"{index}: its documents end at token {bounds[-1]:,}, and {url} has {num_tokens:,}: {MISMATCH}, {infer}"
            )
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
        if self.VERSIONS.get(magic) != version:
            known = ", ".join(f"{each} version {self.VERSIONS[each]}" for each in self.VERSIONS)
            raise InputError(
                f"{url}: it begins with {magic} version {version}, and files of llm.c with {known}; check the format"
            )
        width = {self.GPT2: 2, self.LLAMA3: 4}.get(magic, width)
        if width not in (2, 4):
            raise InputError(f"{url}: its header says {width} bytes an id, not 2 or 4; {REPAIR}")
        num_bytes = input_bytes(url) - header.nbytes
        if num_bytes != count * width:
            raise InputError(
                f"{url}: its header says {count:,} tokens of {width} bytes, but {num_bytes:,} bytes follow: it was cut "
                "or changed; copy the file again"
            )
        return Layout(0, count, TOKEN_DTYPES[width], header.nbytes)


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
        return Layout(0, _count_ids(url, dtype), dtype)


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
        notes = super().notes(url)
        if self.METADATA in self.options["has"]:
            name = self._metadata(url)[0]
            notes.append(
                f"{url}: its metadata says that {name} made the ids; check that `tokenizer` of the spec means the same"
            )
        return notes

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout; compares the tokens with those of the metadata, and with the end of the index."""
        dtype, described = self.id_type("uint16" if self.vocab_size <= 2**16 else "uint32"), None
        if self.METADATA in self.options["has"]:
            _, dtype, described = self._metadata(url)
        num_tokens, num_documents = _count_ids(url, dtype), 0
        if described is not None and described != num_tokens:
            raise InputError(f"{url}: {num_tokens:,} tokens, and {url}.metadata says {described:,}: {MISMATCH}")
        if not self.infers:
            num_documents = count_values(f"{url}.index", self.END)
            last = int(self._ends(url, num_documents - 1, num_documents)[0]) if num_documents else 0
            if last != num_tokens:
                raise InputError(
                    f"{url}.index: its documents end at token {last:,}, and {url} has {num_tokens:,}: {MISMATCH}"
                )
        return Layout(num_documents, num_tokens, dtype)

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """See TokenFormat.bounds."""
        bounds = self._ends(url, max(0, start - 1), end)
        bounds = bounds if start else np.append(0, bounds)
        if bounds[0] < 0 or (np.diff(bounds) < 0).any():
            raise InputError(f"{url}.index: the ends of documents [{start:,}, {end:,}) do not ascend; {REPAIR}")
        return bounds

    def _ends(self, url: str, start: int, end: int) -> Int64s:
        """Return the ends of documents [start, end); one above the largest int64 becomes negative."""
        index = f"{url}.index"
        with open_input(index) as file:
            return read_values(file, index, start * self.END.itemsize, end - start, self.END).astype(np.int64)

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
    if head.startswith(b"\x93NUMPY"):
        raise InputError(f"{url}: it begins with numpy's header, not with ids; write the array with tofile()")
    magic, version = np.frombuffer(head.ljust(_HEAD_BYTES, b"\0"), "<i4").tolist()
    if Llmc.VERSIONS.get(magic) == version:
        raise InputError(f"{url}: it begins with the header of llm.c, not with ids; set format: llmc")
    return count_values(url, dtype)
