"""Measure how fast TokenLoader reads conversations: the same 4-byte ids with masks and without, in turn.

    python benchmarks/read_masks.py [--rounds 7] [--folder DIR] [--tiny] [--output FILE.json]

The shards are warm. The turns of a conversation are 10 to 300 tokens long, the conversations 400 on average. A rate
with masks is divided by the mean of the rates without before and after it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from figures import Figure, print_table, write_json
from read_sizes import BATCH, SEQ_LEN, TINY, Sizes
from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.storage.formats.classes import ASSISTANT, BEGINS, ENDS_TURN, MAY_LEARN, USER

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.builders.synthetic_store import random_documents, write_store

_VOCAB = 150_000
_MEAN_TOKENS = 400
_PACKINGS = ("concat", "best_fit", "document_padded")
_TURNS = (0, USER, 0, ASSISTANT, ASSISTANT | ENDS_TURN)  # of the template, the user, the template, the assistant


def classes_of(lengths: NDArray[np.uint32], seed: int) -> NDArray[np.uint8]:
    """Return the classes of conversations of so many tokens each."""
    rng, num_tokens = np.random.default_rng(seed), int(lengths.sum())
    num_turns = num_tokens // 50
    sizes = [np.full(num_turns, 4), rng.integers(10, 120, num_turns), np.full(num_turns, 5)]
    sizes += [rng.integers(20, 300, num_turns), np.ones(num_turns, np.int64)]
    kinds = np.tile(np.array(_TURNS, np.uint8) | np.uint8(MAY_LEARN), num_turns)
    classes = np.repeat(kinds, np.stack(sizes, 1).reshape(-1))[:num_tokens].copy()
    ends = np.cumsum(lengths, dtype=np.int64)
    classes[ends - 1] = 0
    classes[ends - lengths] |= BEGINS
    return classes


def rate(loader: TokenLoader, num_batches: int) -> float:
    """Return tokens per second; batches that a thread made ahead do not count."""
    for _ in range(64):
        next(loader)
    begin = time.perf_counter()
    for _ in range(num_batches):
        next(loader)
    return num_batches * BATCH * SEQ_LEN / (time.perf_counter() - begin)


def measure(folder: Path, sizes: Sizes, rounds: int) -> list[Figure]:
    """Measure each packing with its thread, with masks and without in turn."""
    shards = [random_documents(sizes.shard_tokens, _MEAN_TOKENS, i, _VOCAB) for i in range(sizes.num_shards)]
    masks = [classes_of(lengths, i) for i, (_, lengths) in enumerate(shards)]
    with_masks = write_store(folder / "chat", shards, vocab_size=_VOCAB, masks=masks)
    references = [write_store(folder / "text", shards, vocab_size=_VOCAB), with_masks]
    figures = []
    for packing in _PACKINGS:
        datasets = [TokenDataset(reference, seq_len=SEQ_LEN, packing=packing) for reference in references]
        text, chat = (TokenLoader(data, BATCH, rank=0, world_size=1) for data in datasets)
        texts, shares = [rate(text, sizes.batches)], []
        for _ in range(rounds):
            found = rate(chat, sizes.batches)
            texts.append(rate(text, sizes.batches))
            shares.append(2 * found / (texts[-2] + texts[-1]))
        figures.append(Figure(f"{packing}, without masks", "M tokens/s", [value / 1e6 for value in texts]))
        figures.append(Figure(f"{packing}, with masks", "of without", shares, ">= 0.8"))
        text.close()
        chat.close()
    return figures


def main() -> None:
    """Print the figures, and write them if a file is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where the stores are made; default: the system's folder for temporary files")
    parser.add_argument("--tiny", action="store_true", help="small stores: does the program work?")
    parser.add_argument("--output", help="a JSON file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        os.environ["TOKENLOOM_CACHE"] = str(Path(folder) / "cache")
        figures = measure(Path(folder), TINY if options.tiny else Sizes(shard_tokens=16_000_000), options.rounds)
    print_table(figures)
    if options.output:
        write_json(options.output, figures)


if __name__ == "__main__":
    main()
