"""Quality: score documents, drop and repeat them by their scores, and compare what models learn."""

# %% [markdown]
# # Quality
#
# Does a model learn more from fewer, better documents? Score a crawl with a tiny classifier, drop and repeat documents
# by their scores, rebuild without encoding anything, and train the same model on each version.
#
# The crawl has every string of 200 characters or more in the sources of the standard library, numpy and torch:
# documentation, but also licenses, templates, test data and C code. Which are good? Those that resemble the manual of
# Python, in this lesson. A quarter of the manual is held out: it will measure the models.

# %%
import ast
import json
import sysconfig
import warnings
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

from tokenloom.examples import lesson_tools as lesson

lesson.begin("quality")
library = Path(sysconfig.get_path("stdlib"))
roots = [library, *(Path(find_spec(name).origin).parent for name in ("numpy", "torch"))]


def long_strings(path, root):
    """Yield a row for each long string of a Python source; its id is a place."""
    try:
        nodes = ast.walk(ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError):  # the library has some to test parsers
        return
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= 200:
            place = f"{path.relative_to(root.parent)}:{node.lineno}:{node.col_offset}"
            yield {"id": place, "text": node.value.encode("utf-8", "replace").decode()}


Path("crawl").mkdir(exist_ok=True)
rows = []
with warnings.catch_warnings(action="ignore"):  # of the sources
    for number, root in enumerate(roots):
        paths = [path.relative_to(root) for path in sorted(root.rglob("*.py"))]
        paths = [path for path in paths if not {"site-packages", "pydoc_data"} & set(path.parts)]  # the manual
        of_root = [row for path in paths[:: lesson.sized(1, 40)] for row in long_strings(root / path, root)]
        Path(f"crawl/{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of_root))
        rows += [row | {"file": number} for row in of_root]

pages = [""]
chapters = list(topics.values())[: lesson.sized(None, 12)]
for paragraph in dict.fromkeys(paragraph for text in chapters for paragraph in text.split("\n\n")):  # each once
    if len(pages[-1]) > 1000:
        pages.append("")
    pages[-1] += paragraph + "\n\n"
held_out, good = pages[::4], [page for number, page in enumerate(pages) if number % 4]
Path("held_out.jsonl").write_text("".join(json.dumps({"text": page}) + "\n" for page in held_out))
print(f"{len(rows):,} texts with {sum(len(row['text']) for row in rows):,} characters;", end=" ")
print(f"{len(good)} pages of the manual are good, {len(held_out)} are held out")

# %% [markdown]
# The first version has the whole crawl. The held-out pages become a dataset of their own, with the same tokenizer.

# %%
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(
    vocab_size=1024, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
)
bpe.train_from_iterator([row["text"] for row in rows[::10]], trainer)
bpe.save("tokenizer.json")

shared = "store: ./store\ntokenizer: {kind: huggingface, path: tokenizer.json}\n"
Path("held_out.yaml").write_text(shared + "dataset: held_out\nsources: [{kind: jsonl, path: held_out.jsonl}]\n")
spec = f"""\
dataset: crawl
{shared}
sources:
  - {{kind: jsonl, path: crawl/*.jsonl, id: id}}
splits: {{train: 0.98, validation: 0.02}}
"""
Path("crawl.yaml").write_text(spec)
lesson.command("tokenloom build held_out.yaml --direct", show=0)
builds = {"all": lesson.command("tokenloom build crawl.yaml --direct", show=6)}
lesson.command("tokenloom tag store/crawl all")

# %% [markdown]
# ## Score
#
# The classifier is a logistic regression on hashed words. It learns to tell pages of the manual from as many texts of
# the crawl, picked at random.

# %%
import re
import zlib

import numpy as np
import torch
from torch import nn


def bags(texts):
    """Return the hashed words of all texts, and the positions where each text begins."""
    words = [[zlib.crc32(word.encode()) % 2**16 for word in re.findall(r"\w+|[^\w\s]", text)] for text in texts]
    starts = np.cumsum([0, *map(len, words)])[:-1]
    return torch.tensor([word for each in words for word in each]), torch.tensor(starts)


texts = [row["text"] for row in rows]
picked = np.random.default_rng(0).choice(len(texts), len(good), replace=False)
examples, is_good = bags([*good, *(texts[i] for i in picked)]), torch.arange(2 * len(good)) < len(good)
classifier = nn.EmbeddingBag(2**16, 1, mode="mean")  # the mean of a weight for each word
nn.init.zeros_(classifier.weight)
optimizer = torch.optim.Adam(classifier.parameters(), lr=0.1)
for _ in range(100):
    loss = nn.functional.binary_cross_entropy_with_logits(classifier(*examples)[:, 0], is_good.float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    scores, scores_held_out = (classifier(*bags(some))[:, 0].numpy() for some in (texts, held_out))
print(f"good: {(scores_held_out > 0).mean():.0%} of the held-out pages, {(scores > 0).mean():.0%} of the crawl")
order = np.argsort(scores)
for share in (0.001, 0.2, 0.5, 0.8, 0.95, 0.999):
    at = order[int(share * len(order))]
    print(f"better than {share:5.1%}: {scores[at]:5.2f}  {' '.join(texts[at].split())[:80]}")

# %% [markdown]
# Read such lists before you trust a score. This classifier has a taste, not an understanding.
#
# ## Write marks
#
# The mark `quality` is the twentieth of the crawl that a text is in, 0 to 19. Each file of the crawl gets a file of
# marks, with as many rows in the same order: `key: row`. The column `id` is compared with the ids of the crawl, so a
# shifted file ends the build.
#
# A second tool looks for leaks. It lists the texts that share 13 words in a row with a held-out page.

# %%
import pyarrow as pa
import pyarrow.parquet as pq

quality = np.empty(len(rows), np.int64)
quality[order] = np.arange(len(rows)) * 20 // len(rows)
Path("marks").mkdir(exist_ok=True)
for number in range(len(roots)):
    chosen = [i for i, row in enumerate(rows) if row["file"] == number]
    marks = {"id": [rows[i]["id"] for i in chosen], "quality": quality[chosen]}
    pq.write_table(pa.table(marks), f"marks/{number}.parquet")


def runs_of_words(text):
    """Return all runs of 13 words of a text."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + 13]) for i in range(len(words) - 12)}


known = set().union(*map(runs_of_words, held_out))
leaks = [row["id"] for row in rows if not known.isdisjoint(runs_of_words(row["text"]))]
Path("leaks.txt").write_text("".join(f"{leak}\n" for leak in leaks))
print(f"{len(leaks)} leaks:", *leaks[:3], "...")

# %% [markdown]
# ## Keep and repeat
#
# Drop the leaks and the lowest 40 %, and have the top 5 % three times. A plan counts what the expression keeps:


# %%
def write_spec(keep, times=3):
    """Write the spec with an expression that decides what to keep, and the copies of the top 5 %."""
    Path("crawl.yaml").write_text(f"""{spec}\
documents:
  marks:
    - {{path: marks/*.parquet, key: row}}
    - {{path: leaks.txt, key: id, as: remove}}
  keep: {keep}
  repeat: {{by: quality, times: {{19: {times}}}}}
""")


write_spec("quality >= 8")
lesson.command("tokenloom plan crawl.yaml")
builds["most"] = lesson.command("tokenloom build crawl.yaml --direct", show=6)
lesson.command("tokenloom tag store/crawl most")

# %% [markdown]
# All partitions were reused: their tokens were in `work/`, so the build only marked and shuffled. The last lines of the
# plan don't count the marks. Nor does another threshold encode anything. This one keeps the best 20 %:

# %%
write_spec("quality >= 16")
builds["best"] = lesson.command("tokenloom build crawl.yaml --direct", show=9)
lesson.command("tokenloom tag store/crawl best")
lesson.command("tokenloom inspect store/crawl@best", show=6)

# %% [markdown]
# A version without repetition will show what the copies do:

# %%
write_spec("quality >= 16", times=1)
builds["best-once"] = lesson.command("tokenloom build crawl.yaml --direct", show=2)
lesson.command("tokenloom tag store/crawl best-once", show=0)

# %% [markdown]
# Which documents are between the two thresholds? `tokenloom diff --list removed` also writes them one by one.

# %%
lesson.command("tokenloom diff store/crawl@most store/crawl@best")

# %% [markdown]
# ## Train
#
# The same small GPT learns from each version, for the same number of tokens in the same number of steps. Each is
# validated on the held-out pages, and on the validation split of the first version, which has texts of every quality.

# %%
import time

from tokenloom import TokenDataset, TokenLoader

SEQ_LEN, BATCH_SIZE, WIDTH, HEADS = lesson.sized(256, 64), 16, 64, 4
NUM_STEPS, EVERY = lesson.sized((200, 50), (2, 1))


class Model(nn.Module):
    """Predict the next token."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(1024, WIDTH), nn.Embedding(SEQ_LEN, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks, self.head = nn.TransformerEncoder(block, 2, enable_nested_tensor=False), nn.Linear(WIDTH, 1024)

    def loss(self, batch):
        """Return the mean loss of a batch."""
        x = self.tokens(batch["input_ids"]) + self.positions.weight
        x = self.blocks(x, nn.Transformer.generate_square_subsequent_mask(SEQ_LEN), is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), batch["labels"].flatten())


VALIDATION = {
    "held-out pages": TokenDataset("store/held_out", "train", SEQ_LEN),
    "the whole crawl": TokenDataset("store/crawl@all", "validation", SEQ_LEN),
}


@torch.no_grad()
def evaluate(model):
    """Return the loss on each validation set, in nats per token."""
    found = {}
    for name, data in VALIDATION.items():
        losses = [model.loss(batch).item() for batch in TokenLoader(data, BATCH_SIZE, num_epochs=1)]
        found[name] = sum(losses) / len(losses)
    return found


def train(tag):
    """Return {step: losses} of a model that learns from a version."""
    torch.manual_seed(0)
    model, curve = Model(), {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, NUM_STEPS)
    data = TokenDataset(f"store/crawl@{tag}", "train", SEQ_LEN)
    for step, batch in zip(range(1, NUM_STEPS + 1), TokenLoader(data, BATCH_SIZE, seed=0), strict=False):
        loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
        if step % EVERY == 0:
            curve[step] = evaluate(model)
    return curve


start = time.perf_counter()
curves = {tag: train(tag) for tag in builds}
seconds = time.perf_counter() - start

figure, axes = lesson.chart("step", "nats per token", columns=2)
for axis, name in zip(axes, VALIDATION, strict=True):
    for (tag, curve), color in zip(
        curves.items(), (lesson.GREY, lesson.BLUE, lesson.ORANGE, lesson.GREEN), strict=True
    ):
        axis.plot(list(curve), [losses[name] for losses in curve.values()], "-o", color=color, label=tag)
    axis.set_title(f"Loss on {name}", loc="left")
    axis.legend()
lesson.save_chart(
    figure, "quality-losses.svg", "Loss by step of four models: the best documents win on the manual, all on the crawl"
)

# %% [markdown]
# On the held-out pages, the best 20 % win. On the whole crawl they lose by even more: the model has learned less
# of what was dropped. The classifier did what it was asked to, so choose its target with care, and validate on all that
# the model will need. The copies of the top 5 % gained nothing here, where no version is read much more than once.
#
# The models are tiny, and each was trained once: differences of a few hundredths may be chance. In a longer training,
# the best 20 % would be read many times, and a lower threshold may win. To try one costs a shuffle.
#
# ## Measured


# %%
def facts(tag):
    """Return a row of the table about a version."""
    data = TokenDataset(f"store/crawl@{tag}", "train", SEQ_LEN)
    split = data.manifest["splits"]["train"]
    last = curves[tag][NUM_STEPS]
    return (
        tag,
        f"{builds[tag].wall_seconds:.1f} s",
        f"{split['documents']:,}",
        f"{split['tokens']:,}",
        f"{NUM_STEPS * BATCH_SIZE / len(data):.2f}",
        *(f"{loss:.3f}" for loss in last.values()),
    )


print(f"{seconds / len(curves):.0f} s for each training of {NUM_STEPS * BATCH_SIZE * SEQ_LEN:,} tokens")
head = ("version", "build", "documents", "tokens", "epochs trained", *(f"loss on {name}" for name in VALIDATION))
lesson.show_table(*map(facts, builds), head=head)
