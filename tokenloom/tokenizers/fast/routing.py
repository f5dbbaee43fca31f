"""Which texts only the reference may encode, found without a loop over characters."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.tokenizers.base import text_bytes

_NUM_CODE_POINTS = 0x110000
_MAX_TEXT_BYTES = 16_000_000  # the memory of the reference for a long text is known
# The bytes of a character of two, three and four bytes: the first one's mask, and how many follow.
_LEAD_MASKS = np.array([0x7F] * 0xC0 + [0x1F] * 0x20 + [0x0F] * 0x10 + [0x07] * 0x10, np.uint32)


class Router:
    """Finds the texts that a fast encoder may encode differently.

    Args:
        odd: ranges [first, last] of code points that it may encode differently.
        spellings: texts that it finds in a text but the reference does not, such as those of special tokens.
    """

    def __init__(self, odd: Iterable[Sequence[int]], spellings: Collection[str]) -> None:
        self._is_odd = np.zeros(_NUM_CODE_POINTS, bool)
        for first, last in odd:
            self._is_odd[first : last + 1] = True
        characters = {text for text in spellings if len(text) == 1}
        self._is_odd[[ord(character) for character in characters]] = True
        self._has_odd = bool(self._is_odd.any())
        self._odd_ascii = self._is_odd[:0x80].copy()
        self._spellings = "|".join(map(re.escape, sorted(set(spellings) - characters)))

    def needs_reference(self, texts: pa.Array) -> NDArray[np.bool_]:
        """Return for each of n texts, a large_string array without nulls, whether only the reference may encode it."""
        data, offsets = text_bytes(texts)
        needs = np.diff(offsets) > _MAX_TEXT_BYTES
        if self._spellings:
            needs |= pc.match_substring_regex(texts, self._spellings).to_numpy(zero_copy_only=False)
        if self._has_odd:
            places = self._odd_places(data)
            needs[np.searchsorted(offsets, places, side="right") - 1] = True
        return needs

    def _odd_places(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return where odd characters start in UTF-8."""
        leads = np.flatnonzero(data >= 0xC0)
        places = [leads[self._is_odd[_code_points(data, leads)]]]
        if self._odd_ascii.any():
            ascii_places = np.flatnonzero(data < 0x80)
            places.append(ascii_places[self._odd_ascii[data[ascii_places]]])
        return np.concatenate(places)


def _code_points(data: NDArray[np.uint8], leads: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the code points of the characters of two to four bytes that start at `leads`."""
    first = data[leads]
    codes = first & _LEAD_MASKS[first]
    for index, least in ((1, 0xC0), (2, 0xE0), (3, 0xF0)):
        has_more = first >= least
        following = data[leads[has_more] + index] & 0x3F
        codes[has_more] = (codes[has_more] << 6) | following
    return codes
