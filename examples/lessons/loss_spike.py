"""A loss spike: find its documents, remove them, and train on."""

# %% [markdown]
# # A loss spike
#
# Which documents made the loss jump at step N, and how do you train on without them? Trace a spike to the rows of
# files, find all other steps that read them, build a version without them, and train on from an earlier checkpoint.
#
# The texts are chapters of Python's manual in pieces of about 2,000 characters, in eight files. Two rows hold no text:
# there, a crawler has stored an image in base64.

# %%
import base64
import json
import random
from pathlib import Path
from pydoc_data.topics import topics

from tokenloom.examples import lesson_tools as lesson

lesson.begin("loss_spike")
rng = random.Random(0)
files = [[] for _ in range(8)]
for name, text in sorted(topics.items())[: lesson.sized(None, 20)]:
    pieces = [""]
    for paragraph in text.split("\n\n"):
        if len(pieces[-1]) > 2000:
            pieces.append("")
        pieces[-1] += paragraph + "\n\n"
    for part, piece in enumerate(pieces):
        rng.choice(files).append({"id": f"{name}/{part}", "text": piece})
for number, image in ((2, "logo"), (5, "banner")):
    noise = base64.b64encode(rng.randbytes(900)).decode()
    files[number].insert(len(files[number]) // 2, {"id": image, "text": noise})
for number, rows in enumerate(files):
    Path(f"manual-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
spec = """\
dataset: manual
store: ./store
sources:
  - {kind: jsonl, path: manual-*.jsonl, id: id, name: manual}
tokenizer: byte
splits: {train: 0.9, validation: 0.1}
"""
Path("manual.yaml").write_text(spec)
built = lesson.command("tokenloom build manual.yaml --direct", show=6)

# %% [markdown]
# ## Train until it spikes
#
# The model is a small GPT on bytes. Every 30 steps, the training keeps a checkpoint: the model, the optimizer, and the
# state of the loader, which is a line of JSON.

# %%
import copy

import torch
from torch import nn

from tokenloom import TokenDataset, TokenLoader, TokenloomError

SEQ_LEN, NUM_STEPS, EVERY = lesson.sized((512, 200, 30), (128, 40, 10))
BATCH_SIZE, SEED, WIDTH, HEADS = 4, 0, 64, 4


class Model(nn.Module):
    """Predict the next byte."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(SEQ_LEN, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks, self.head = nn.TransformerEncoder(block, 2, enable_nested_tensor=False), nn.Linear(WIDTH, 256)

    def losses(self, batch):
        """Return the loss of each label, (B, T)."""
        x = self.tokens(batch["input_ids"]) + self.positions.weight
        x = self.blocks(x, nn.Transformer.generate_square_subsequent_mask(SEQ_LEN), is_causal=True)
        return nn.functional.cross_entropy(self.head(x).transpose(1, 2), batch["labels"], reduction="none")


class Run:
    """A model in training, and the loss of each of its steps."""

    def __init__(self):
        torch.manual_seed(0)
        self.model, self.losses = Model(), {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)

    def train(self, loader, steps, checkpoints=None):
        """Make an update with each of the next batches of a loader; fill {number of steps: checkpoint}."""
        for step, batch in zip(steps, loader, strict=False):
            loss = self.model.losses(batch).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses[step] = loss.item()
            if checkpoints is not None and (step + 1) % EVERY == 0:
                checkpoints[step + 1] = self.checkpoint(loader)

    def checkpoint(self, loader):
        """Return what is needed to train on from here."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return copy.deepcopy(parts | {"loader": loader.state_dict()})

    @classmethod
    def restored(cls, checkpoint):
        """Return a run that trains on from a checkpoint."""
        run = cls()
        run.model.load_state_dict(checkpoint["model"])
        run.optimizer.load_state_dict(copy.deepcopy(checkpoint["optimizer"]))
        return run


lesson.command("tokenloom tag store/manual first-run")  # `tokenloom gc` keeps versions that have a tag
old = TokenDataset("store/manual", split="train", seq_len=SEQ_LEN)
loader = TokenLoader(old, BATCH_SIZE, seed=SEED)
first = Run()
checkpoints = {0: first.checkpoint(loader)}
first.train(loader, range(NUM_STEPS), checkpoints)
state = loader.state_dict()
print(f"{NUM_STEPS} steps of {len(old) // BATCH_SIZE} in an epoch;", end=" ")
print(f"the loader's state: {state['samples']} samples of the version {state['stream']['version']}")

# %% [markdown]
# How far is the loss of a step above the median of the ten steps before it? A step is a spike here if it is more than
# half as far above it as the worst step.

# %%
from statistics import median

losses = first.losses
excess = {
    step: losses[step] - median(losses[before] for before in range(step - 10, step)) for step in range(10, NUM_STEPS)
}
worst = max(excess, key=excess.get)
spikes = [step for step in excess if excess[step] > excess[worst] / 2]
figure, axes = lesson.chart("step", "nats per byte", "The loss of each step")
axes.plot(list(losses), list(losses.values()), color=lesson.BLUE)
axes.plot(spikes, [losses[step] for step in spikes], "o", color=lesson.ORANGE)
lesson.save_chart(figure, "loss_spike-found.svg", "The loss falls, and jumps at a few steps")
print(f"spikes at the steps {spikes}; the worst, {worst}, is {excess[worst]:.2f} nats above the steps before it")

# %% [markdown]
# ## Which documents?
#
# `tokenloom trace` needs neither the model nor the training, only the version and the arguments that the loader had:

# %%
OF_LOADER = f"--seq-len {SEQ_LEN} --batch-size {BATCH_SIZE} --seed {SEED}"
lesson.command(f"tokenloom trace {old.reference} --step {worst} {OF_LOADER} --chars 60")

# %% [markdown]
# In a batch this small, you see at once which document it is. In a batch of a thousand, load the checkpoint before the
# step, and take the mean loss of each document. `loader.batch_at` returns the batch of any step, `loader.trace` its
# documents. Label t is the byte t + 1 of a sample, hence the `- 1`.


# %%
def losses_of_documents(step):
    """Yield the mean loss and the trace of each document in the batch of a step."""
    before = max(number for number in checkpoints if number <= step)
    with torch.no_grad():
        losses = Run.restored(checkpoints[before]).model.losses(loader.batch_at(step))
    for row, sample in zip(losses, loader.trace(step)["samples"], strict=True):
        for document in sample["documents"]:
            labels = row[max(document["start"] - 1, 0) : document["end"] - 1]
            if len(labels):
                yield labels.mean().item(), len(labels), document


rows = [
    (f"{loss:.2f}", length, document["id"], document["path"], document["row"])
    for loss, length, document in losses_of_documents(worst)
]
lesson.show_table(*rows, head=("nats per byte", "bytes", "id", "file", "row"))

# %% [markdown]
# Do the same for the other spikes, and read the texts in their files before you condemn them. In JSON lines, `row` is
# where the line begins, in bytes.

# %%
culprits = {}
for step in spikes:
    _, _, document = max(losses_of_documents(step), key=lambda found: found[0])
    culprits[document["content"]] = document
for document in culprits.values():
    with Path(document["path"]).open("rb") as file:
        file.seek(document["row"])
        line = json.loads(file.readline())
    print(
        f"{document['path']}, row {document['row']}: {line['id']}, {len(line['text'])} characters:", line["text"][:40]
    )

# %% [markdown]
# ## Which other steps?
#
# `tokenloom where` is the inverse of `trace`: it lists the steps that read a document, of this epoch or of later ones.


# %%
def where(content):
    """Return the steps that read a document, as JSON."""
    found = lesson.command(f"tokenloom where {old.reference} --content {content} {OF_LOADER} --json", show=0)
    return json.loads(found.output)["steps"]


content = next(iter(culprits))
lesson.command(f"tokenloom where {old.reference} --content {content} {OF_LOADER}")
seen = {content: where(content) for content in culprits}
bad_steps = {each["step"] for found in seen.values() for each in found}
print("steps that read them:", sorted(bad_steps))
print("spikes not explained:", sorted(set(spikes) - bad_steps))

# %% [markdown]
# A document lies in several samples here, and the order puts them into different steps; some read only its end, and are
# not spikes. `position` says which checkpoints have read it: those whose state has more `samples`.
#
# ## A version without them
#
# `documents.exclude` names a file with the contents, or the texts, that a version must not have. It also holds for all
# later builds, whatever file the text may come from then.

# %%
Path("removed.txt").write_text("# images in base64\n" + "".join(f"{content}\n" for content in culprits))
Path("manual.yaml").write_text(spec + "documents: {exclude: removed.txt}\n")
rebuilt = lesson.command("tokenloom build manual.yaml --direct", show=6)
lesson.command(f"tokenloom diff {old.reference} store/manual")
lesson.command(f"tokenloom diff {old.reference} store/manual --list removed")

# %% [markdown]
# The build encoded nothing: what it had encoded was in `work/`, and it left the two documents out when it shuffled. If
# you repair a file instead, its partition is encoded again, and no other. A plan shows it:

# %%
culprit = next(iter(culprits.values()))
repaired = Path(culprit["path"])
before = repaired.read_bytes()
repaired.write_bytes(b"".join(line for line in before.splitlines(True) if f'"{culprit["id"]}"'.encode() not in line))
lesson.command("tokenloom plan manual.yaml", show=3)
repaired.write_bytes(before)

# %% [markdown]
# ## Train on
#
# Which checkpoint has read neither document? The last one with at most as many samples as the first position above.

# %%
first_position = min(each["position"] for found in seen.values() for each in found)
start = max(step for step, each in checkpoints.items() if each["loader"]["samples"] <= first_position)
print(f"first position {first_position}; go on from the checkpoint at step {start}, sample {start * BATCH_SIZE}")

# %% [markdown]
# There are two ways on. The first one keeps the version and passes over the steps that `where` listed. The state of the
# checkpoint fits, and all other steps read what they would have read.

# %%
state = checkpoints[start]["loader"]
skipping = Run.restored(checkpoints[start])
again = TokenLoader.from_state("store", state, BATCH_SIZE)
for step in range(start, NUM_STEPS):
    if step in bad_steps:
        next(again)
    else:
        skipping.train(again, [step])

# %% [markdown]
# The second one takes the new version. Its loader refuses the state, which belongs to another stream:

# %%
new = TokenDataset("store/manual", split="train", seq_len=SEQ_LEN)
loader_of_new = TokenLoader(new, BATCH_SIZE, seed=SEED + 1)
try:
    loader_of_new.load_state_dict(state)
except TokenloomError as error:
    print(error)

# %% [markdown]
# Without the two documents, the samples have another order. "The rest of the epoch" means nothing there, so the new
# version is read from its beginning. How much of it was read before the checkpoint? `trace` says which bytes of which
# documents a step reads:


# %%
def bytes_of(loader, steps):
    """Return the bytes of documents that some steps read."""
    return {
        (document["content"], document["document_start"] + place)
        for step in steps
        for sample in loader.trace(step, chars=0)["samples"]
        for document in sample["documents"]
        for place in range(document["end"] - document["start"])
    }


read, to_read = bytes_of(loader, range(start)), bytes_of(loader_of_new, range(NUM_STEPS - start))
read_again = len(read & to_read) / len(to_read)
print(f"{start / (len(old) // BATCH_SIZE):.0%} of the epoch was read;", end=" ")
print(f"of the bytes in the next {NUM_STEPS - start} steps of the new version, {read_again:.0%} were")

# %% [markdown]
# The two shares are about the same, as the orders have nothing in common. If no text may be read twice, keep the old
# version and pass over the steps until the epoch ends. Otherwise take the new one now.

# %%
on_new = Run.restored(checkpoints[start])
on_new.train(loader_of_new, range(start, NUM_STEPS))

figure, axes = lesson.chart("step", "nats per byte", f"From the checkpoint at step {start}")
for run, color, label in (
    (first, lesson.GREY, "as it was"),
    (skipping, lesson.BLUE, "without the steps"),
    (on_new, lesson.ORANGE, "on the new version"),
):
    steps = [step for step in run.losses if step >= start]
    axes.plot(steps, [run.losses[step] for step in steps], color=color, label=label, linewidth=1)
for step in bad_steps & set(range(start, NUM_STEPS)):
    axes.axvline(step, color=lesson.GREY, linewidth=0.8, linestyle=":")
axes.legend()
lesson.save_chart(
    figure, "loss_spike-after.svg", "The losses of three runs; only the first one has spikes, at the dotted lines"
)

# %% [markdown]
# The dotted lines are the steps that `where` listed. Both versions have the same validation split, so the three models
# can be compared. This small one forgets the noise within a step or two; a long training that diverges does not.


# %%
@torch.no_grad()
def validated(run):
    """Return the loss of a run's model on the validation split."""
    data = TokenDataset("store/manual", split="validation", seq_len=SEQ_LEN)
    losses = [run.model.losses(batch).mean().item() for batch in TokenLoader(data, BATCH_SIZE, num_epochs=1)]
    return sum(losses) / len(losses)


def highest(run):
    """Return the highest loss of a run since the checkpoint."""
    return max(run.losses[step] for step in run.losses if step >= start)


lesson.show_table(
    ("time of the build and of the rebuild", f"{built.wall_seconds:.1f} s, {rebuilt.wall_seconds:.1f} s"),
    ("spikes, and those that the documents explain", f"{len(spikes)}, {len(bad_steps & set(spikes))}"),
    ("steps that read the documents", len(bad_steps)),
    ("nats per byte at the worst step, and before it", f"{losses[worst]:.2f}, {losses[worst] - excess[worst]:.2f}"),
    *(
        (f"highest and validation loss, {label}", f"{highest(run):.2f}, {validated(run):.3f}")
        for label, run in (("as it was", first), ("without the steps", skipping), ("on the new version", on_new))
    ),
    ("read a second time on the new version", f"{read_again:.0%}"),
)
