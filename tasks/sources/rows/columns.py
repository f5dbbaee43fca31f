"""Take the texts or conversations and the ids of rows from columns of Arrow record batches.

The columnar counterpart of fields.py, for kinds that are read in batches: parquet, Arrow, Hugging Face datasets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import BadRow, InputError, message_of
from tokenloom.spec.row_filter import Comparison, Filter, Members, comparisons_of, decided, parse_filter
from tokenloom.storage.formats.arrays import runs_of
from tokenloom.tasks.sources.base import BATCH_BYTES, Options, Rows
from tokenloom.tasks.sources.rows.column_filter import check_comparable, kept_rows
from tokenloom.tasks.sources.rows.column_names import field_type, has_column, is_list, pick, plain, value_type
from tokenloom.tasks.sources.rows.conversations import ROLES, instead_of_text
from tokenloom.tasks.sources.rows.decoding import Decoding
from tokenloom.tasks.sources.rows.literals import compare
from tokenloom.tasks.sources.rows.path_columns import OPTION

if TYPE_CHECKING:
    from tokenloom.tasks.sources.rows.conversation_columns import ConversationColumns

_VALUE_BYTES = 8  # of a value beside the texts of a conversation


class Columns:
    """Takes texts and ids from record batches.

    Args:
        options: see SourceReader; `text`, `messages`, `tools`, `id` and the columns of `filter` may be dotted, into
            structs.
    """

    def __init__(self, options: Options) -> None:
        self._conversations: ConversationColumns | None = None
        if options.get("messages") is not None:
            from tokenloom.tasks.sources.rows.conversation_columns import ConversationColumns  # texts need none of it

            self._conversations = ConversationColumns(options)
        self._text: str = options["text"] or ""  # not used if there are conversations
        self.id: str | None = options.get("id")
        self._filter: Filter | None = parse_filter(options["filter"]) if options.get("filter") else None
        self._path_columns: dict[str, str | None] = options.get(OPTION, {})
        self._skips = options.get("on_error") == "skip"
        self._decoding = Decoding(options)

    def needed(self, schema: pa.Schema, url: str) -> list[str]:
        """Return the dotted names of the columns to read; raises InputError if one is missing or of a wrong type."""
        names = self.documents(schema, url)
        if self.id is not None and not self._is_of_path(schema, self.id):
            kind = value_type(field_type(schema, self.id, url, "id"))
            if not (pa.types.is_integer(kind) or _is_string(kind)):
                raise InputError(
                    f"{url}: column {self.id!r} is {kind}; an id is a string or an integer. Set id: to such a column"
                )
            names.append(self.id)
        tree = self.filter_of(schema, url)
        for comparison in comparisons_of(tree) if tree else []:
            check_comparable(schema, comparison, url)
            names.append(comparison.column)
        return list(dict.fromkeys(names))

    def documents(self, schema: pa.Schema, url: str) -> list[str]:
        """Return the dotted names of the columns that hold the documents; raises InputError as `needed` does."""
        if self._conversations is not None:
            return self._conversations.names(schema, url)
        if self._is_of_path(schema, self._text):
            return []
        kind = field_type(schema, self._text, url, "text")
        items = plain_kind = value_type(kind)
        if is_list(plain_kind):
            items = plain_kind.value_type
            if pa.types.is_struct(items) and ROLES & {field.name for field in items}:
                raise InputError(f"{url}: column {self._text!r} holds conversations; {instead_of_text(self._text)}")
            items = None if isinstance(items, pa.BaseExtensionType) else value_type(items)
        if not _is_string(items):
            raise InputError(
                f"{url}: column {self._text!r} is {kind}; a text column holds strings, or lists of strings. "
                "Set text: to such a column"
            )
        return [self._text]

    def _is_of_path(self, schema: pa.Schema, name: str) -> bool:
        return name in self._path_columns and not has_column(schema, name)

    def _pick(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if self._is_of_path(batch.schema, name):
            return pa.repeat(pa.scalar(self._path_columns[name], pa.large_string()), len(batch))
        return pick(batch, name)

    def filter_of(self, schema: pa.Schema, url: str) -> Filter | None:
        """Return the filter of a file's rows, in which comparisons with columns of its path are decided.

        Raises InputError if one can't be compared.
        """

        def decide(comparison: Comparison | Members) -> bool | None:
            if not self._is_of_path(schema, comparison.column):
                return None
            try:
                return compare(self._path_columns[comparison.column], comparison, parses_numbers=True)
            except ValueError as error:
                raise InputError(f"{url}: {message_of(error)}; check the filter") from error

        return decided(self._filter, decide) if self._filter and self._path_columns else self._filter

    def rows(self, batch: pa.RecordBatch, first_row: int, url: str) -> Iterator[Rows]:
        """Yield the rows of a record batch, in batches of about BATCH_BYTES of text.

        Args:
            batch: with at least the needed columns.
            first_row: the number of its first row in the file.
            url: for messages.
        """
        names = [self._text] if self._conversations is None else self.documents(batch.schema, url)
        lengths = sum(_text_lengths(self._pick(batch, name)) for name in names)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        for start, end in runs_of(offsets, BATCH_BYTES):
            yield self._rows(batch.slice(start, end - start), names, first_row + start, url)

    def _rows(self, batch: pa.RecordBatch, names: list[str], first_row: int, url: str) -> Rows:
        numbers = np.arange(first_row, first_row + len(batch), dtype=np.uint64)
        documents = [plain(self._pick(batch, name)) for name in names]
        if self._conversations is None:
            documents = [_joined(documents[0])]
        raw_ids = None if self.id is None else plain(self._pick(batch, self.id))
        num_filtered = 0
        if (tree := self.filter_of(batch.schema, url)) is not None:
            kept = kept_rows(batch, tree, url)
            mask, num_filtered = pa.array(kept), int((~kept).sum())
            documents, numbers = [one.filter(mask) for one in documents], numbers[kept]
            raw_ids = None if raw_ids is None else raw_ids.filter(mask)
        bad: dict[int, BadRow] = {}
        documents = [self._strings(one, numbers, url, bad) if _is_string(one.type) else one for one in documents]
        if self._conversations is None:
            texts = documents[0]
        else:
            texts = self._conversations.texts(dict(zip(names, documents, strict=True)), numbers, url, bad)
        ids = None if raw_ids is None else self._strings(raw_ids, numbers, url, bad)
        if bad and not self._skips:
            raise bad[min(bad)]
        if bad:
            good = ~np.isin(numbers, np.array(list(bad), np.uint64))
            texts, numbers = texts.filter(pa.array(good)), numbers[good]
            ids = ids if ids is None else ids.filter(pa.array(good))
        return Rows(texts, numbers, ids, num_filtered=num_filtered, bad=tuple(bad[row] for row in sorted(bad)))

    def _strings(self, values: pa.Array, numbers: NDArray[np.uint64], url: str, bad: dict[int, BadRow]) -> pa.Array:
        """Return values as valid UTF-8, (n,) large_string; invalid ones are repaired, or null and noted in `bad`."""
        try:
            if pa.types.is_integer(values.type):
                return values.cast(pa.large_string())
            strings = values.cast(pa.large_string())
            strings.validate(full=True)  # Arrow's decoders don't check that strings are UTF-8
            return strings
        except pa.ArrowInvalid:
            return self._decoded(values.cast(pa.large_binary()), numbers, url, bad)

    def _decoded(self, values: pa.Array, numbers: NDArray[np.uint64], url: str, bad: dict[int, BadRow]) -> pa.Array:
        texts: list[str | None] = []
        for value, row in zip(values.to_pylist(), numbers.tolist(), strict=True):
            try:
                texts.append(None if value is None else self._decoding.decode(f"{url}, row {row}", row, value))
            except BadRow as error:
                texts.append(None)
                bad[row] = error
        return pa.array(texts, pa.large_string())


def _is_string(kind: pa.DataType) -> bool:
    strings = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
    return kind in strings


def _joined(values: pa.Array) -> pa.Array:
    """Return lists of strings as strings with one item on each line; null items are left out."""
    if not is_list(values.type):
        return values
    items = values.cast(pa.large_list(pa.large_binary()))
    if items.flatten().null_count:
        lists = [row and [item for item in row if item is not None] for row in items.to_pylist()]
        items = pa.array(lists, pa.large_list(pa.large_binary()))
    return pc.binary_join(items, pa.scalar(b"\n", pa.large_binary()))


def _text_lengths(values: pa.Array) -> NDArray[np.int64]:
    """Return the approximate number of bytes in the text of each row, (n,)."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        lengths = _text_lengths(values.dictionary)
        indices = pc.fill_null(values.indices, 0).to_numpy(zero_copy_only=False)
        return lengths[indices] if len(lengths) else np.zeros(len(values), np.int64)
    if is_list(values.type):
        items = values.flatten()
        item_bytes = np.concatenate([[0], np.cumsum(_text_lengths(items) + 1)])
        ends = np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
        return np.diff(item_bytes[ends], prepend=0)
    if pa.types.is_struct(values.type):
        return sum(map(_text_lengths, values.flatten()), np.zeros(len(values), np.int64))
    if not (_is_string(values.type) or pa.types.is_null(values.type)):
        return np.full(len(values), _VALUE_BYTES)
    lengths = pc.binary_length(values.cast(pa.large_binary()))
    found: NDArray[np.int64] = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    return found
