"""Added tokens that are runs of spaces, as GPT-NeoX and OLMo have them, encoded as one marker each.

A library that finds added tokens cuts the text at each of them and encodes the parts one by one, which takes gigatoken
three times as long for source code. Here, the marker U+0085 replaces a run before the text is encoded, and the id of
the run replaces the marker's afterwards. A text that contains U+0085 itself goes to the reference.

The ids equal those of parts encoded one by one. GPT-2's pattern ends a word where the text ends, or before the last of
several characters of white space (`\\s+(?!\\S)`), which is the marker. Where the marker shares a word with what is
beside it, nothing is merged across it, because its two bytes are merged first and no other token contains them. Other
patterns have a rule for line ends, which reaches across the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import Int64s, ranges_of
from tokenloom.storage.work.segments import as_segments, take_segments
from tokenloom.tokenizers.fast.known_parts import pre_tokenizer
from tokenloom.tokenizers.patterns import GPT_2
from tokenloom.tokenizers.tiktoken_files import LETTERS

MARKER = "\x85"
_MARKER_BYTES = len(MARKER.encode())
_SPACE = ord(" ")
_EncodeTexts = Callable[[list[bytes]], list[NDArray[np.uint32]]]
_LETTERS = "".join(LETTERS[byte] for byte in MARKER.encode())


class SpaceRuns:
    """The added tokens of a tokenizer.json that are runs of 2 to n spaces.

    Args:
        ids: (n + 1,) the id of each length; those of 0 and 1 are not used.
        marker_id: the id that a library gives the marker.
    """

    def __init__(self, ids: NDArray[np.uint32], marker_id: int) -> None:
        self.ids, self.marker_id = ids, marker_id
        self._longest = len(ids) - 1

    def marking(self, encode_texts: _EncodeTexts) -> _EncodeTexts:
        """Return `encode_texts`, which encodes texts, with markers for runs."""

        def encode(texts: list[bytes]) -> list[NDArray[np.uint32]]:
            marked, ids = self.mark(texts)
            return self.restore(encode_texts(marked), ids)

        return encode

    def mark(self, texts: list[bytes]) -> tuple[list[bytes], NDArray[np.uint32]]:
        """Return the texts, UTF-8, with markers for runs, and the ids of all runs in order.

        A run is taken from the left: as many of the longest token as fit, then one for the rest; a single space stays.
        """
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        data = np.frombuffer(b"".join(texts), np.uint8)
        follows = _follows_space(data, offsets)
        edges = np.flatnonzero(follows[1:] != follows[:-1])
        starts, ends = edges[::2], edges[1::2] + 1
        places, lengths = _cut_runs(starts, ends - starts, self._longest)
        marked = data.copy()
        marked[places], marked[places + 1] = MARKER.encode()
        cuts = np.column_stack([places + _MARKER_BYTES, places + lengths]).ravel()  # what is removed: after markers
        segments = as_segments(marked, np.diff(cuts, prepend=0, append=len(data)))
        kept = take_segments(segments, np.arange(0, len(cuts) + 1, 2), marked.dtype).tobytes()
        num_removed = np.cumsum(np.append(0, lengths - _MARKER_BYTES))
        bounds = (offsets - num_removed[np.searchsorted(places, offsets)]).tolist()
        return [kept[start:end] for start, end in pairwise(bounds)], self.ids[lengths]

    def restore(self, ids: list[NDArray[np.uint32]], runs: NDArray[np.uint32]) -> list[NDArray[np.uint32]]:
        """Return the ids of each text with those of the runs in place of markers.

        Raises ValueError if there are not as many markers as runs.
        """
        tokens = np.concatenate([np.empty(0, np.uint32), *ids])
        places = np.flatnonzero(tokens == self.marker_id)
        if len(places) != len(runs):
            raise ValueError(f"{len(runs)} runs of spaces became {len(places)} markers")
        tokens[places] = runs
        bounds = np.cumsum([0, *map(len, ids)]).tolist()
        return [tokens[start:end] for start, end in pairwise(bounds)]


def _follows_space(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which bytes are spaces after a space of the same text, and False for the end, (num_bytes + 1,)."""
    is_space = data == _SPACE
    follows = np.zeros(len(data) + 1, bool)
    np.logical_and(is_space[1:], is_space[:-1], out=follows[1:-1])
    follows[offsets] = False
    return follows


def _cut_runs(starts: Int64s, lengths: Int64s, longest: int) -> tuple[Int64s, Int64s]:
    """Return starts and lengths of the tokens of n runs: as many of the longest as fit into each, one for the rest."""
    num_longest, rest = np.divmod(lengths, longest)
    num_tokens = num_longest + (rest > 1)
    index = ranges_of(num_tokens)  # in its run
    is_longest = index < np.repeat(num_longest, num_tokens)
    return np.repeat(starts, num_tokens) + index * longest, np.where(is_longest, longest, np.repeat(rest, num_tokens))


def find_space_runs(content: Mapping[str, Any]) -> tuple[SpaceRuns, dict[str, Any]] | None:
    """Return the runs, and the content of a tokenizer.json with a marker in place of added tokens.

    None if its added tokens are not runs of 2 to n spaces, its pattern is not GPT-2's, or the marker could become a
    part of another token.

    Args:
        content: as bare_content returns it.
    """
    model, runs = content["model"], _ids_by_length(content)
    is_gpt_2 = content["pre_tokenizer"] == pre_tokenizer((GPT_2,))
    is_in_tokens = any(_LETTERS in token for token in model["vocab"].keys() - {_LETTERS})
    has_all_lengths = runs and sorted(runs) == list(range(2, len(runs) + 2))
    if not (has_all_lengths and is_gpt_2) or is_in_tokens or model["ignore_merges"]:
        return None
    vocab = {_LETTERS: max(model["vocab"].values()) + 1, **model["vocab"]}
    first = " ".join(_LETTERS)
    merges = [first, *(pair for pair in model["merges"] if pair != first)]
    ids = np.array([0, 0, *(runs[length] for length in sorted(runs))], np.uint32)
    model = model | {"vocab": vocab, "merges": merges}
    return SpaceRuns(ids, vocab[_LETTERS]), {**content, "model": model, "added_tokens": []}


def _ids_by_length(content: Mapping[str, Any]) -> dict[int, int]:
    """Return the ids of the runs of spaces by their lengths; empty if there is another added token too."""
    tokens = content["added_tokens"]
    return {} if any(token["content"].strip(" ") for token in tokens) else {len(t["content"]): t["id"] for t in tokens}
