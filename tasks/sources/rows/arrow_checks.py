"""Check the offsets and indices of record batches before any value is used, since a file may hold anything.

Arrow's decoders take them from the file unchecked. Used like that, they may read foreign memory or another row's text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def check_batch(batch: pa.RecordBatch) -> None:
    """Raise ArrowInvalid if a column's lengths, offsets or indices are out of its bounds."""
    try:
        batch.validate()
        for column in batch.columns:
            _check_array(column)
    except IndexError as error:
        raise pa.ArrowInvalid(str(error)) from error


def _check_array(values: pa.Array) -> None:
    """Check all offsets of an array whose lengths are checked; strings may hold invalid UTF-8 (see Columns)."""
    kind, types = values.type, pa.types
    if isinstance(values, pa.ExtensionArray):
        _check_array(values.storage)
    elif types.is_struct(kind):
        for i in range(kind.num_fields):
            _check_array(values.field(i))
    elif types.is_dictionary(kind):
        pa.DictionaryArray.from_arrays(values.indices, pa.nulls(len(values.dictionary))).validate(full=True)
        _check_array(values.dictionary)
    elif types.is_list(kind) or types.is_large_list(kind):
        offsets = values.offsets.to_numpy()
        if len(values) and (offsets[0] < 0 or (np.diff(offsets) < 0).any() or offsets[-1] > len(values.values)):
            raise pa.ArrowInvalid("offsets of lists are out of order")
        _check_array(values.values)
    elif types.is_fixed_size_list(kind):
        _check_array(values.values)
    elif types.is_string(kind) or types.is_large_string(kind):
        values.view(pa.binary() if types.is_string(kind) else pa.large_binary()).validate(full=True)
    elif types.is_string_view(kind):
        values.view(pa.binary_view()).validate(full=True)
    else:
        values.validate(full=True)
