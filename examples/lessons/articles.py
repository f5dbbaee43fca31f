"""The characters of long articles: chunks, segments, and what reads from a disk cost."""

# %% [markdown]
# # The characters of long articles
#
# How does a model learn from a document that is longer than its context? Cut documents into chunks and segments, train
# a small model with and without a memory across segments, and read the same bytes in six ways.
#
# The articles are the Python sources of the standard library. A token is a byte, so the tokenizer needs no vocabulary.

# %%
import json
import sysconfig
from pathlib import Path

from tokenloom.examples import lesson_tools as lesson

lesson.begin("articles")
library = Path(sysconfig.get_path("stdlib"))
paths = [path for path in sorted(library.rglob("*.py")) if not {"test", "site-packages"} & set(path.parts)]
texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths[:: lesson.sized(1, 12)]]
with Path("articles.jsonl").open("w", encoding="utf-8") as file:
    file.writelines(json.dumps({"text": text}) + "\n" for text in texts)

SEQ_LEN = lesson.sized(4096, 256)
long = sum(len(text) for text in texts if len(text) > SEQ_LEN)
print(f"{len(texts):,} articles with {sum(map(len, texts)):,} characters;")
print(f"{long / sum(map(len, texts)):.0%} of the characters are in articles of more than {SEQ_LEN:,}")

# %% [markdown]
# A spec names the text, the tokenizer and the splits. The build encodes the articles, sorts them by a hash of their
# content, which shuffles them, and writes one shard for each split.

# %%
spec = """\
dataset: articles
store: ./store
sources:
  - {kind: jsonl, path: articles.jsonl, text: text}
tokenizer: {kind: byte}
splits: {train: 0.8, validation: 0.1, test: 0.1}
"""
Path("articles.yaml").write_text(spec)
built = lesson.command("tokenloom build articles.yaml --direct", show=6)

# %% [markdown]
# ## A memory map from scratch
#
# A shard is a header, the tokens of all documents, and the offsets where documents begin. Three numbers of the header
# are enough to find a document: [the files to the byte](../../docs/reference/format.md#the-shard-tok) has the others.

# %%
import struct
import time

import numpy as np

path = next(Path("store/articles/versions").glob("*/train/000000.tok"))
with path.open("rb") as file:
    fixed = file.read(96)
_, version, _, token_bytes, _ = struct.unpack_from("<8sIIII", fixed)
num_tokens, num_documents, tokens_start, offsets_start = struct.unpack_from("<QQQQ", fixed, 24)

map_seconds = []
for _ in range(5):
    start = time.perf_counter()
    tokens = np.memmap(path, f"<u{token_bytes}", "r", tokens_start, (num_tokens,))
    offsets = np.memmap(path, "<u8", "r", offsets_start, (num_documents + 1,))
    map_seconds.append(time.perf_counter() - start)
print(f"format {version}: {num_tokens:,} tokens of {token_bytes} byte in {num_documents:,} documents")
print(f"mapped in {min(map_seconds) * 1e6:.0f} µs; document 2 begins:")
print(bytes(tokens[offsets[2] : offsets[2] + 60]).decode(errors="replace"))

# %% [markdown]
# The maps took microseconds, whatever the size of the file, because they read nothing. A page of 4 KiB is read when one
# of its addresses is used first: a page fault. The system counts them:

# %%
import resource


def faults():
    """Return how many page faults this process has had."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


mapped = np.memmap(path, np.uint8, "r")
before = faults()
mapped[: 1 << 18].sum()
first = faults() - before
before = faults()
mapped[: 1 << 18].sum()
print(f"first pass over 256 KiB: {first} page faults; second pass: {faults() - before}")

# %% [markdown]
# ## What a read costs
#
# Training reads rows in a random order. How much slower is that than reading from beginning to end? The next cells read
# rows of a larger file twice: *cold*, after the system was asked to forget the file (`posix_fadvise`), and *warm*, when
# all rows have just been read.
#
# The host of a virtual disk may still have the bytes in its memory. To see that reads are cold at all, count the bytes
# that this process got from the disk (`/proc/self/io`).

# %%
import os

ROW = 4096  # bytes: 2,048 tokens of a vocabulary of 50,000, or one page
big = Path("big.bin")
rng = np.random.default_rng(0)
with big.open("wb") as file:
    for _ in range(lesson.sized(64, 1)):
        file.write(rng.bytes(1 << 24))
    os.fsync(file.fileno())  # only what is on the disk can be forgotten
num_rows = big.stat().st_size // ROW


def forget():
    """Ask the system to forget the file; it keeps pages that a process has mapped."""
    with big.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def from_disk():
    """Return the bytes that this process has read from the disk."""
    return int(Path("/proc/self/io").read_text().split("\nread_bytes: ")[1].split()[0])


# %% [markdown]
# Six ways to get the same number of rows into an array. `map` copies them out of a memory map. `pread` is one call of
# the system for each row. `MADV_RANDOM` says that neighbours will not be needed.

# %%
import mmap
from concurrent.futures import ThreadPoolExecutor

MEASURED = lesson.sized(4096, 256)
in_order = np.arange(MEASURED)
at_random = rng.permutation(num_rows)[:MEASURED]
batch = np.empty((MEASURED, ROW), np.uint8)


def by_map(advice=mmap.MADV_NORMAL):
    """Map the file; return a function that copies rows out of the map."""
    mapped = np.memmap(big, np.uint8, "r").reshape(-1, ROW)
    mapped._mmap.madvise(advice)

    def read(rows):
        for place, row in enumerate(rows):
            batch[place] = mapped[row]

    return read


def by_pread(row_bytes=ROW):
    """Return a function that reads each row with a call of the system."""
    places = batch.reshape(-1, row_bytes)

    def read(rows, first=0):
        with big.open("rb") as file:
            for place, row in enumerate(rows, first):
                os.preadv(file.fileno(), [places[place]], row * row_bytes)

    return read


def by_threads(num_threads=8):
    """Return a function that lets each of eight threads read a part of the rows."""

    def read(rows):
        parts = np.array_split(np.arange(len(rows)), num_threads)
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(lambda part: by_pread()(rows[part], part[0]), parts))

    return read


def measure(rows, way, *arguments):
    """Return seconds and disk bytes of a cold read, and seconds of a warm one: the best of three rounds."""
    cold, disk, warm = [], [], []
    for _ in range(3):
        forget()
        read = way(*arguments)
        before, start = from_disk(), time.perf_counter()
        read(rows)
        cold.append(time.perf_counter() - start)
        disk.append(from_disk() - before)
        start = time.perf_counter()
        read(rows)
        warm.append(time.perf_counter() - start)
        del read  # the system forgets no page that is mapped
    return min(cold), min(disk), min(warm)


ways = {
    "map, in order": measure(in_order, by_map),
    "pread, in order": measure(in_order, by_pread),
    "map, random": measure(at_random, by_map),
    "map with MADV_RANDOM, random": measure(at_random, by_map, mmap.MADV_RANDOM),
    "pread, random": measure(at_random, by_pread),
    "pread on 8 threads, random": measure(at_random, by_threads),
}
asked = MEASURED * ROW
lesson.show_table(
    *(
        (way, f"{cold / MEASURED * 1e6:.1f}", f"{warm / MEASURED * 1e6:.1f}", f"{disk / asked:.1f}")
        for way, (cold, disk, warm) in ways.items()
    ),
    head=("way to read rows of 4 KiB", "µs a row, cold", "µs a row, warm", "bytes from disk for each byte used"),
)

# %%
figure, axes = lesson.chart("MB of rows per second", "", "The same rows, cold and warm")
places = np.arange(len(ways))[::-1]
axes.barh(places + 0.2, [asked / cold / 1e6 for cold, _, _ in ways.values()], 0.38, color=lesson.BLUE, label="cold")
axes.barh(places - 0.2, [asked / warm / 1e6 for _, _, warm in ways.values()], 0.38, color=lesson.GREY, label="warm")
axes.set_yticks(places, list(ways))
axes.set_xscale("log")
axes.xaxis.set_major_formatter("{x:,.0f}")
axes.legend()
lesson.save_chart(figure, "articles-1.svg", "Bars: MB per second of six ways to read rows, cold and warm")

# %% [markdown]
# Read the table by its columns:
#
# - *Warm*, a row takes a few microseconds in any order and by any way, most of them in Python.
# - *Cold and in order*, the system reads ahead, so most rows are there before they are asked for.
# - *Cold and random*, each row waits for the disk. A plain map makes it worse: at each fault the system reads the
#   neighbours too, which nobody wants. The last column shows that. `MADV_RANDOM` and `pread` read only the row.
# - *Threads* do not make a single read faster; they wait for several at the same time.
#
# How large must a random read be to cost as little as a sequential one? The wait for the disk is paid once for a read,
# so it is divided by more bytes:

# %%
sizes = [ROW << shift for shift in range(0, 9, 2)]
speeds = []
for size in sizes:
    rows = rng.permutation(big.stat().st_size // size)[: max(1, asked // size)]
    cold, _, _ = measure(rows, by_pread, size)
    speeds.append(len(rows) * size / cold / 1e6)
    print(f"{size >> 10:>6,} KiB a read: {speeds[-1]:8,.0f} MB/s")

figure, axes = lesson.chart("KiB a read", "MB per second", "Cold reads at random places, one after the other")
axes.plot([f"{size >> 10:,}" for size in sizes], speeds, marker="o", color=lesson.BLUE, label="random")
axes.axhline(asked / ways["pread, in order"][0] / 1e6, color=lesson.ORANGE, label="in order")
axes.set_ylim(0)
axes.legend()
lesson.save_chart(figure, "articles-2.svg", "Line: MB per second of random reads grows with the size of a read")

# %% [markdown]
# So a build shuffles the documents, and training reads long runs in order ([the order of
# samples](../../docs/concepts/order.md)); the loader reads ahead in blocks of 128 to 512 KiB on several threads, and
# copies rows out of a memory map once they are in memory.
#
# ## Chunks of one document
#
# A row of the packing `document` is a chunk: `seq_len` tokens of one document, and one more for the last label. No
# chunk crosses a document. What is left at the end of a document is dropped, and so is every document without a whole
# chunk. What does each packing cost here?

# %%
from tokenloom import EvaluationPass, TokenDataset, TokenLoader, segments

for packing in ("concat", "document", "document_padded", "best_fit"):
    packed = TokenDataset("store/articles", "train", SEQ_LEN, packing=packing)
    shares = packed.packing_shares()
    print(f"{packing:16}{len(packed):6,} samples{shares.padding_share:8.2%} padding{shares.cut_share:9.2%} cut")

# %%
training = TokenDataset("store/articles", "train", SEQ_LEN, packing="document")
validation = TokenDataset("store/articles", "validation", SEQ_LEN, packing="document")
chunk = training[0]
print(f"{len(training):,} chunks for training, {len(validation):,} for validation")
print(chunk["input_ids"][:8], chunk["labels"][:8])
row = np.flatnonzero(np.diff(offsets.astype(np.int64)) > SEQ_LEN)[0]  # the first document that is long enough
print("the same bytes as the map from scratch:", bool((tokens[offsets[row] :][:SEQ_LEN] == chunk["input_ids"]).all()))

# %% [markdown]
# ## Segments of a chunk
#
# A recurrent model could learn from a whole chunk at once, but its gradient would go back through 4,096 steps, for one
# update. Truncated backpropagation cuts the chunk into segments, makes an update for each, and hands the state on
# without its gradient. So the model may remember what it read thousands of characters ago.
#
# Two models see the same batches. One carries its state from segment to segment; the other forgets at each border.

# %%
import torch
from torch import nn

torch.set_num_threads(1)  # so small a model is not faster on two
SEGMENTS, HIDDEN = 16, lesson.sized(128, 16)


class Characters(nn.Module):
    """Predict the next byte from the bytes before it, with a GRU."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.memory = nn.GRU(64, HIDDEN, batch_first=True)
        self.output = nn.Linear(HIDDEN, 256)

    def forward(self, segment, state):
        """Return the loss of each token, (B, T), and the state after the last."""
        hidden, state = self.memory(self.embedding(segment["input_ids"]), state)
        logits = self.output(hidden).transpose(1, 2)
        return nn.functional.cross_entropy(logits, segment["labels"], reduction="none"), state.detach()


def losses_of(model, batch, carries, optimizer=None):
    """Return the loss of each token of a batch, (B, T); make an update for each segment if there is an optimizer."""
    losses, state = [], None
    for segment in segments(batch, SEGMENTS):
        loss, state = model(segment, state if carries else None)
        losses.append(loss.detach())
        if optimizer:
            optimizer.zero_grad()
            loss.mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return torch.cat(losses, 1)


@torch.no_grad()
def evaluate(model, carries, num_batches):
    """Return the mean loss at each position of a chunk, (T,), over the first chunks of the validation split."""
    batches = zip(range(num_batches), EvaluationPass(validation, 16), strict=False)
    losses = [losses_of(model, batch, carries)[(batch["labels"] != -100).all(1)] for _, batch in batches]
    return torch.cat(losses).mean(0)


# %% [markdown]
# Three losses belong to each model: the loss on the batches that it trains on; the loss on validation chunks, read as
# in training; and the same with the other habit, which shows whether the model uses its state.

# %%
BATCHES, EVERY = lesson.sized(48, 2), lesson.sized(6, 1)


def train(carries):
    """Return a model, its losses by update, and its processor seconds."""
    torch.manual_seed(0)
    model = Characters()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    loader = TokenLoader(training, 16, seed=0, world_size=1, rank=0)
    drawn = {"training": {}, "validation": {}, "validation, other habit": {}}
    start = time.process_time()
    for number, batch in zip(range(1, BATCHES + 1), loader):
        drawn["training"][number * SEGMENTS] = losses_of(model, batch, carries, optimizer).mean().item()
        if number % EVERY == 0:
            drawn["validation"][number * SEGMENTS] = evaluate(model, carries, 1).mean().item()
            drawn["validation, other habit"][number * SEGMENTS] = evaluate(model, not carries, 1).mean().item()
    loader.close()
    return model, drawn, time.process_time() - start


carrying, its_losses, seconds = train(carries=True)
forgetting, other_losses, _ = train(carries=False)
print(f"{BATCHES * SEGMENTS:,} updates of 16 x {SEQ_LEN // SEGMENTS} characters in {seconds:.0f} s of processor time")

# %%
figure, both = lesson.chart("update", "nats per character", columns=2)
for axes, title, drawn in zip(both, ("Carries its state", "Forgets"), (its_losses, other_losses), strict=True):
    for (name, values), color in zip(drawn.items(), (lesson.GREY, lesson.BLUE, lesson.ORANGE), strict=True):
        axes.plot(list(values), list(values.values()), color=color, label=name)
    axes.set_title(title, loc="left")
    axes.set_ylim(min(its_losses["training"].values()) - 0.1, 4)
both[0].legend()
lesson.save_chart(
    figure, "articles-3.svg", "Lines: three losses of a model that carries its state and of one that forgets"
)

# %% [markdown]
# The training curves are close: most of what one character says about the next is nearby. The first model loses when
# its state is taken away; the other gains from a state that it never had at the start of a segment.
#
# Where is the difference? Look at the mean loss by position in a segment, over all segments but the first of a chunk:

# %%
positions = {
    "carries its state": (evaluate(carrying, True, 8), lesson.BLUE),
    "the same model, emptied at each segment": (evaluate(carrying, False, 8), lesson.ORANGE),
    "trained to forget": (evaluate(forgetting, False, 8), lesson.GREEN),
}
figure, axes = lesson.chart("position in the segment", "nats per character", "Loss by position")
for name, (losses, color) in positions.items():
    axes.plot(losses.view(SEGMENTS, -1)[1:, :64].mean(0), color=color, label=name)
axes.legend()
lesson.save_chart(figure, "articles-4.svg", "Lines: without a carried state, a segment begins with a higher loss")


def at_starts(losses):
    """Return the mean loss of the first 8 characters of all segments but the first of a chunk."""
    return losses.view(SEGMENTS, -1)[1:, :8].mean().item()


for name, (losses, _) in positions.items():
    print(f"{name:<40} {losses.mean():.3f} nats, at the start of segments {at_starts(losses):.3f}")

# %% [markdown]
# A model that forgets pays at the start of each segment, until it has read enough to know where it is. That is the
# price of short rows, for a transformer too.
#
# ## Measured

# %%
(carried, _), (emptied, _), (forgot, _) = positions.values()
cold_random, warm_random = ways["map, random"][0], ways["map, random"][2]
lesson.show_table(
    ("text built into shards", f"{sum(map(len, texts)) / 1e6:.1f} MB in {built.wall_seconds:.1f} s"),
    ("mapping a shard", f"{min(map_seconds) * 1e6:.0f} µs"),
    ("rows of 4 KiB in order, cold", f"{asked / ways['map, in order'][0] / 1e6:,.0f} MB/s"),
    ("the same rows at random, cold, by a map", f"{asked / cold_random / 1e6:,.0f} MB/s"),
    ("bytes from the disk for each byte used, by that map", f"{ways['map, random'][1] / asked:.1f}"),
    ("rows at random, cold, by pread on 8 threads", f"{asked / ways['pread on 8 threads, random'][0] / 1e6:,.0f} MB/s"),
    ("rows at random, warm, by a map", f"{asked / warm_random / 1e6:,.0f} MB/s"),
    ("reads of 1 MiB at random, cold", f"{speeds[-1]:,.0f} MB/s"),
    ("an update of 4,096 characters, with its evaluations", f"{seconds / BATCHES / SEGMENTS * 1e3:.0f} ms of a core"),
    ("loss with the state carried", f"{carried.mean():.3f} nats per character"),
    ("loss of the same model without it", f"{emptied.mean():.3f}"),
    ("loss of the model that was trained to forget", f"{forgot.mean():.3f}"),
    ("at the start of segments: carried, without it", f"{at_starts(carried):.3f}, {at_starts(emptied):.3f}"),
)
