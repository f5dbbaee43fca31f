"""Gigabytes of nested JSON to batches on several ranks, with nothing held in memory."""

# %% [markdown]
# # Gigabytes of nested JSON
#
# How do many files of nested JSON become batches on several ranks, if they are larger than memory? Build a dataset from
# them, find the step that takes the time, feed four ranks, and continue on three with the same rows.
#
# A grammar of made-up words gives sentences and paragraphs; each line of a file is an object with the paragraphs deep
# inside.

# %%
import json
import random
from pathlib import Path

from tokenloom.examples import lesson_tools as lesson

lesson.begin("nested_json")
NUM_FILES, FILE_BYTES = lesson.sized((24, 50_000_000), (4, 400_000))
rng = random.Random(0)


def word():
    """Return a word of one to four syllables."""
    syllables = rng.choice((1, 2, 2, 3, 3, 4))
    return "".join(
        rng.choice("bdfghklmnprstvw") + rng.choice(("a", "e", "i", "o", "u", "ai")) for _ in range(syllables)
    )


words = [word() for _ in range(6000)]
weights = [1 / (rank + 5) for rank in range(6000)]  # a few words are frequent, as in a language
sentences = [
    " ".join(rng.choices(words, weights, k=rng.randrange(5, 25))).capitalize() + "."
    for _ in range(lesson.sized(20_000, 500))
]


def page(number):
    """Return the object of a line."""
    paragraphs = [" ".join(rng.choices(sentences, k=rng.randrange(1, 8))) for _ in range(rng.randrange(1, 12))]
    return {
        "meta": {"id": number, "lang": rng.choice(("en", "en", "en", "de")), "scores": {"quality": rng.random()}},
        "body": {"title": rng.choice(sentences), "paragraphs": paragraphs},
    }


num_pages = 0
Path("pages").mkdir(exist_ok=True)
for file_number in range(NUM_FILES):
    with Path(f"pages/{file_number:02}.jsonl").open("w") as file:
        while file.tell() < FILE_BYTES:
            file.write(json.dumps(page(num_pages)) + "\n")
            num_pages += 1
num_bytes = sum(path.stat().st_size for path in Path("pages").iterdir())
print(f"{num_pages:,} pages, {num_bytes:,} bytes in {NUM_FILES} files; the first begins:")
with Path("pages/00.jsonl").open() as file:
    print(file.readline()[:200])

# %% [markdown]
# ## A tokenizer of your own
#
# A vocabulary from elsewhere would cut these words badly. The library `tokenizers` learns one from a few thousand
# pages.

# %%
from itertools import islice

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

with Path("pages/00.jsonl").open() as file:
    sample = ["\n".join(json.loads(line)["body"]["paragraphs"]) for line in islice(file, 3000)]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
tokenizer.train_from_iterator(
    sample,
    trainers.BpeTrainer(
        vocab_size=8192, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    ),
)
tokenizer.save("tokenizer.json")
print(tokenizer.encode(sentences[0]).tokens[:12])

# %% [markdown]
# ## Say what to build
#
# Names with dots lead into the objects. `text` may be a list of texts, which become lines of one document. The filter
# compares other fields of the same object. [Inputs](../../docs/guides/inputs.md) has the other kinds and options.

# %%
spec = """\
dataset: pages
store: ./store
sources:
  - kind: jsonl
    path: pages/*.jsonl
    text: body.paragraphs
    filter: 'meta.lang == "en" and meta.scores.quality >= 0.2'
tokenizer: {kind: huggingface, path: tokenizer.json, name: pages, eot: <|endoftext|>, backend: BACKEND}
shard_tokens: 16_000_000
"""
Path("pages.yaml").write_text(spec.replace("BACKEND", lesson.sized("auto", "reference")))
planned = lesson.command("tokenloom plan pages.yaml")

# %% [markdown]
# One line of the plan matters here: the library that defines this tokenizer is slow, and a fast one is not proven to
# give the same ids for this vocabulary. `tokenloom tokenizer` proves it once; the machine keeps the proof.

# %%
lesson.command(f"tokenloom tokenizer pages.yaml --set tokenizer.backend={lesson.sized('auto', 'reference')}")

# %% [markdown]
# ## Find the bottleneck
#
# Is the encoder the bottleneck? Build the first files alone, each time with one thing changed, and read the seconds of
# each step from `build.json`, beside the manifest of every version.

# %%
few = f"pages/0[0-{lesson.sized(1, 0)}].jsonl"
few_bytes = sum(path.stat().st_size for path in Path().glob(few))
trials = {
    "reference library, 1 worker": "--workers 1 --set tokenizer.backend=reference",
    "reference library, 2 workers": "--workers 2 --set tokenizer.backend=reference",
    "fast encoder, 1 worker": "--workers 1",
    "fast encoder, 2 workers": "--workers 2",
}
seconds, walls = {}, {}
for number, (name, options) in enumerate(list(trials.items())[: lesson.sized(4, 1)]):
    store = f"trial-{number}"
    done = lesson.command(
        f"tokenloom build pages.yaml --direct {options} --set store={store} --set sources.0.path='{few}'", show=0
    )
    build = next(Path(store, "pages", "versions").glob("*/build.json"))
    seconds[name], walls[name] = json.loads(build.read_text())["seconds"], done.wall_seconds
lesson.show_table(
    *(
        (name, *(f"{steps[step]:.1f}" for step in ("tokenize", "shuffle")), f"{walls[name]:.1f}")
        for name, steps in seconds.items()
    ),
    head=(f"{few_bytes / 1e6:.0f} MB of JSON", "tokenize, s", "shuffle, s", "the whole command, s"),
)

# %%
figure, axes = lesson.chart("seconds", "", "Where the time of a build goes")
names = list(seconds)[::-1]
tokenize = [seconds[name]["tokenize"] for name in names]
shuffle = [seconds[name]["shuffle"] for name in names]
rest = [walls[name] - first - second for name, first, second in zip(names, tokenize, shuffle)]
axes.barh(names, tokenize, color=lesson.BLUE, label="tokenize")
axes.barh(names, shuffle, left=tokenize, color=lesson.ORANGE, label="shuffle, and check meanwhile")
axes.barh(names, rest, left=[a + b for a, b in zip(tokenize, shuffle)], color=lesson.GREY, label="start, plan")
axes.legend()
lesson.save_chart(figure, "nested_json-1.svg", "Bars: seconds of each step, by encoder and number of workers")

# %% [markdown]
# With the reference library, the encoder is the bottleneck, and a second worker helps as much as a second core can.
# With the fast encoder, proven once, what is left is the start of processes, reading JSON, sorting and writing.
#
# ## Build everything
#
# Now all files. `lesson.command` watches the memory of all processes. A worker holds a piece of one file; the shuffle
# merges sorted pieces from the disk.

# %%
built = lesson.command("tokenloom build pages.yaml --direct", show=7)
print(f"{num_bytes / built.wall_seconds / 1e6:.0f} MB/s of JSON; {built.cpu_seconds:.0f} s of processor time")
print(
    f"the largest of {built.num_processes} processes took {built.peak_bytes / 1e6:.0f} MB for {num_bytes / 1e6:,.0f} MB"
)

# %% [markdown]
# What a build encoded stays in `work/`, by file. When a file arrives, the next build encodes that one alone, and sorts
# all documents again:

# %%
with Path(f"pages/{NUM_FILES:02}.jsonl").open("w") as file:
    while file.tell() < FILE_BYTES:
        file.write(json.dumps(page(num_pages)) + "\n")
        num_pages += 1
grown = lesson.command("tokenloom build pages.yaml --direct", show=2)
print(f"{grown.cpu_seconds:.1f} s of processor time instead of {built.cpu_seconds:.1f} s")

# %% [markdown]
# ## Look inside
#
# `inspect` says what became of the rows, and `peek` shows documents with the row that each came from. The report of the
# build, an HTML page, has the same in charts.

# %%
inspected = lesson.command("tokenloom inspect store/pages")
peeked = lesson.command("tokenloom peek store/pages --count 1 --chars 150")

# %% [markdown]
# ## Batches on four ranks
#
# Each rank opens the dataset by itself; ranks do not communicate. Rank r of 4 takes the positions r, r + 4, r + 8, ...
# of one global order. Here four processes read at the same time.

# %%
import subprocess
import sys

rank_script = """\
import json, sys, time
from pathlib import Path
from tokenloom import TokenDataset, TokenLoader

rank, world_size, steps = map(int, sys.argv[1:])
data = TokenDataset("store/pages", seq_len=1024)
loader = TokenLoader(data, batch_size=8, seed=0, rank=rank, world_size=world_size, device="numpy")
start = time.perf_counter()
for _ in range(steps):
    next(loader)
seconds = time.perf_counter() - start
memory = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps({"tokens": steps * 8 * 1024 / seconds, "own": memory["RssAnon"], "mapped": memory["RssFile"]}))
"""
Path("rank.py").write_text(rank_script)
RANKS, STEPS = lesson.sized(4, 1), lesson.sized(500, 2)
processes = [
    subprocess.Popen([sys.executable, "rank.py", str(rank), str(RANKS), str(STEPS)], stdout=subprocess.PIPE)
    for rank in range(RANKS)
]
ranks = [json.loads(process.communicate()[0]) for process in processes]
megabytes = [{name: int(rank[name].split()[0]) / 1024 for name in ("own", "mapped")} for rank in ranks]
lesson.show_table(
    *(
        (number, f"{rank['tokens'] / 1e6:.1f}", f"{memory['own']:.0f}", f"{memory['mapped']:.0f}")
        for number, (rank, memory) in enumerate(zip(ranks, megabytes))
    ),
    head=("rank", "million tokens a second", "own memory, MiB", "mapped files, MiB"),
)

# %% [markdown]
# Only the mapped files grow with the dataset. Mapped pages belong to the cache of the system, which all ranks share.
#
# ## Prefetch
#
# What does a training wait for? Let a step compute for 10 ms and measure how long it then waits for its next batch. The
# shards are forgotten before each run, so that rows come from the disk. The order `full` jumps through the whole split,
# and `access="pread"` reads no neighbours, so this dataset behaves like one that is larger than memory
# ([what a read costs](../../docs/lessons/articles.md#what-a-read-costs) is a part of another lesson).

# %%
import os
import time

from tokenloom import TokenDataset, TokenLoader


def waits(**options):
    """Return the seconds that each step waits, and the loader's statistics."""
    for shard in Path("store/pages/versions").glob("*/train/*.tok"):
        with shard.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    cold = TokenDataset("store/pages", seq_len=1024, access="pread")
    loader = TokenLoader(cold, 32, order="full", rank=0, world_size=1, device="numpy", **options)
    found = []
    for _ in range(lesson.sized(300, 5)):
        start = time.perf_counter()
        next(loader)
        found.append(time.perf_counter() - start)
        time.sleep(0.01)
    loader.close()
    return found, loader.stats()


feeds = {
    "neither": waits(prefetch=0, io_threads=0),
    "read-ahead on 8 threads": waits(prefetch=0),
    "prefetch in a thread": waits(io_threads=0),
    "both, the default": waits(),
}
figure, axes = lesson.chart("step", "seconds waited so far", "Steps of 10 ms, batches of 32 rows from a cold disk")
colors = (lesson.GREY, lesson.ORANGE, lesson.GREEN, lesson.BLUE)
for (name, (found, _)), color in zip(feeds.items(), colors):
    axes.plot([sum(found[:number]) for number in range(len(found))], color=color, label=name)
axes.legend()
lesson.save_chart(figure, "nested_json-2.svg", "Lines: waiting adds up fastest without prefetch and read-ahead")
lesson.show_table(
    *(
        (name, f"{stats.first_batch * 1e3:.0f}", f"{stats.wait_mean * 1e3:.2f}", f"{stats.idle_ratio:.1%}")
        for name, (_, stats) in feeds.items()
    ),
    head=("from a cold disk", "first batch, ms", "mean wait of the others, ms", "share of the time"),
)
print(feeds["both, the default"][1])

# %% [markdown]
# With neither, every eighth step waits for eight batches. Read-ahead asks the disk for whole blocks around several rows
# at once; later rows find them in memory. The prefetch makes batches while the step computes. The statistics name the
# phase that limits the loader.
#
# ## Resume on another number of ranks
#
# The state of a loader is one number: how many samples all ranks have taken. Stop after 50 steps on four ranks with 6
# rows each, and continue on three ranks with 8 rows each. A step still takes 24 rows, and they should be the same.


# %%
def loaders(world_size, batch_size, state=None):
    """Return the loaders of all ranks, at a state."""
    made = [
        TokenLoader(data, batch_size, seed=0, rank=rank, world_size=world_size, device="numpy", prefetch=0)
        for rank in range(world_size)
    ]
    for loader in made:
        if state:
            loader.load_state_dict(state)
    return made


def step(ranks):
    """Return the rows of the next step of all ranks, sorted."""
    return sorted(row.tobytes() for loader in ranks for row in next(loader)["input_ids"])


data = TokenDataset("store/pages", seq_len=1024)
four = loaders(4, 6)
for _ in range(lesson.sized(50, 3)):
    step(four)
state = json.loads(json.dumps(four[0].state_dict()))  # as a checkpoint holds it
print(f"samples taken: {state['samples']:,}")
three = loaders(3, 8, state)
same = [step(four) == step(three) for _ in range(lesson.sized(100, 5))]
print(f"steps with the same rows on three ranks as on four: {sum(same)} of {len(same)}")

# %% [markdown]
# No row is lost and none comes twice, because the order was never a matter of ranks. Loaders that give each rank its
# own files cannot do this.
#
# ## Measured

# %%
slow, fast = next(iter(seconds.values()))["tokenize"], list(seconds.values())[-1]["tokenize"]
without, with_both = feeds["neither"][1], feeds["both, the default"][1]
lesson.show_table(
    ("JSON built", f"{num_bytes / 1e6:,.0f} MB in {built.wall_seconds:.0f} s"),
    ("the same with one file more, the others encoded before", f"{grown.wall_seconds:.0f} s"),
    ("memory of the largest process of the build", f"{built.peak_bytes / 1e6:.0f} MB"),
    (f"{few_bytes / 1e6:.0f} MB tokenized by the reference library, 1 worker", f"{slow:.1f} s"),
    ("the same by the fast encoder, 2 workers", f"{fast:.1f} s"),
    (f"tokens a second of {RANKS} ranks together", f"{sum(rank['tokens'] for rank in ranks) / 1e6:.0f} million"),
    ("own memory of a rank", f"{max(memory['own'] for memory in megabytes):.0f} MiB"),
    ("mean wait of a step, cold, without prefetch and read-ahead", f"{without.wait_mean * 1e3:.2f} ms"),
    ("the same with both", f"{with_both.wait_mean * 1e3:.2f} ms"),
    ("steps with the same rows after a change from 4 ranks to 3", f"{sum(same)} of {len(same)}"),
)
