"""Conversations: templates, masks, packing, and what a model learns."""

# %% [markdown]
# # Conversations
#
# What does a model learn from a conversation if only the replies count, and what if everything counts? Build
# conversations, see the role of every token, pack them, train both ways, and measure the loss with the right mean.
#
# There are three kinds. The assistant adds two numbers and reasons first, looks up a price with a tool, or sorts fruit.
# Each message of the user begins with a random order number, which no model can predict.

# %%
import json
import random
from pathlib import Path

from tokenloom.examples import lesson_tools as lesson

lesson.begin("conversations")
rng = random.Random(0)
GOODS = [
    f"{color} {thing}" for color in ("red", "blue", "green", "white") for thing in ("lamp", "chair", "vase", "rug")
]
FRUIT = ["apple", "banana", "cherry", "fig", "grape", "lemon", "mango", "orange", "peach", "pear", "plum", "quince"]
TOOLS = [{"type": "function", "function": {"name": "price", "parameters": {"item": "string"}}}]


def user(text):
    """Return a message of the user that begins with a random order number."""
    return {"role": "user", "content": f"Order {''.join(rng.choices('0123456789ABCDEF', k=16))}: {text}"}


def assistant(content, **more):
    """Return a message of the assistant."""
    return {"role": "assistant", "content": content, **more}


def addition():
    """Return a conversation with reasoning."""
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    tens, ones = a + b // 10 * 10, b % 10
    reasoning = f"{a} and {b - ones} are {tens}, {tens} and {ones} are {a + b}."
    return {"messages": [user(f"What is {a} plus {b}?"), assistant(f"{a + b}.", reasoning_content=reasoning)]}


def lookup():
    """Return a conversation with a call of a tool."""
    item, price = rng.choice(GOODS), str(rng.randint(10, 99))
    call = {"type": "function", "function": {"name": "price", "arguments": {"item": item}}}
    messages = [user(f"What does the {item} cost?"), assistant("", tool_calls=[call])]
    return {"messages": [*messages, {"role": "tool", "content": price}, assistant(f"{price}.")], "tools": TOOLS}


def sorting():
    """Return a conversation with two turns of the assistant."""
    fruit = rng.sample(FRUIT, rng.randint(3, 5))
    messages = [user(f"Sort {', '.join(fruit)}."), assistant(f"{', '.join(sorted(fruit))}.")]
    return {"messages": [*messages, user("Which is last?"), assistant(f"{max(fruit)}.")]}


rows = [rng.choice([addition, lookup, sorting])() for _ in range(lesson.sized(4000, 120))]
for message in next(row for row in rows if "tools" in row)["messages"]:
    print(json.dumps(message))

# %% [markdown]
# Two more rows go into the file. In the first, the assistant makes an error and corrects it: `train: false` keeps the
# error out of the loss, and leaves it in the context. The last row is broken: `narrator` is not a role.

# %%
error = [user("What is 20 plus 22?"), assistant("43.", train=False), user("Are you sure?"), assistant("42.")]
rows = [{"messages": error}, *rows, {"messages": [{"role": "narrator", "content": "Night fell."}]}]
Path("chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
print(f"{len(rows):,} rows, {Path('chats.jsonl').stat().st_size:,} bytes")

# %% [markdown]
# ## Tokenizer and template
#
# A vocabulary of 400 ids is enough: BPE, trained on these rows, with digits as tokens of their own. Three special
# tokens begin a turn, end a turn and end a document. Four more tokens, which are not special, enclose reasoning and
# calls.

# %%
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

bpe = Tokenizer(models.BPE())
split_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split_bytes])
bpe.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=396,
    show_progress=False,
    initial_alphabet=split_bytes.alphabet(),
    special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
)
bpe.train_from_iterator((json.dumps(row) for row in rows), trainer)
bpe.add_tokens(["<think>", "</think>", "<call>", "</call>"])
bpe.save("tokenizer.json")
print(bpe.encode("<think>17 and 20 are 37").tokens)

# %% [markdown]
# A chat template is a small program that writes a conversation as one text. This one resembles ChatML. What it writes
# between `generation` and `endgeneration` is the assistant's. A template without these marks works too: tokenloom then
# finds the replies by [a second rendering](../../docs/guides/conversations.md#chat-templates).

# %%
Path("chatml.jinja").write_text("""\
{%- if tools %}
    {{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {%- if message.reasoning_content %}
                {{- '<think>' + message.reasoning_content + '</think>' }}
            {%- endif %}
            {{- message.content }}
            {%- for call in message.tool_calls or [] %}
                {{- '<call>' + call.function.name + call.function.arguments | tojson + '</call>' }}
            {%- endfor %}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
""")
Path("chats.yaml").write_text("""\
dataset: chats
store: ./store
sources:
  - {kind: jsonl, path: chats.jsonl, messages: messages, tools: tools, name: made}
tokenizer: {kind: huggingface, path: tokenizer.json, eot: <|endoftext|>}
chat: {template: chatml.jinja}
documents: {on_error: skip}
splits: {train: 0.9, validation: 0.1}
""")
lesson.command("tokenloom plan chats.yaml", show=22)

# %% [markdown]
# The plan shows the first row of the file as the template writes it. `>` marks what is learned: the reply `42.` and the
# token that ends its turn. Neither the questions nor the wrong reply are learned.
#
# ## Build and look

# %%
build = lesson.command("tokenloom build chats.yaml --direct")
lesson.command("tokenloom peek store/chats --count 2")

# %% [markdown]
# The row of the narrator was left out and counted, and the version lists such rows. `row` is the place of the line in
# the file, in bytes:

# %%
version = next(Path("store/chats/versions").iterdir())
print((version / "quarantine.jsonl").read_text())

# %% [markdown]
# Beside each token, the version has one byte: the role, in the lower four bits, and whether the token may be learned.
# The reader decides what is learned, so one version serves every policy:

# %%
from tokenloom import EvaluationPass, TokenDataset, TokenLoader, document_mask

SEQ_LEN, BATCH_SIZE = 384, 8
SHAPE = {"seq_len": SEQ_LEN, "packing": "best_fit", "overlong": "drop"}


def opened(split, learn="assistant"):
    """Return the packed rows of a split."""
    fields = ["classes", "document_ids", "position_ids"]
    return TokenDataset("store/chats", split, **SHAPE, learn=learn, fields=fields)


for learn in ("all", "assistant", "last", ["reasoning"], ["tool_call"]):
    data = opened("train", learn)
    num_targets = sum(batch["num_targets"] for batch in TokenLoader(data, 1, num_epochs=1))
    print(f"{learn!s:<14} {len(data):,} samples, {num_targets:>7,} targets")

# %% [markdown]
# All policies have the same samples in the same order. Only the labels differ: that of a token which is not a target is
# -100, which losses ignore.
#
# ## Packing
#
# One conversation a row, padded, would waste most of the computation, and rows cut from consecutive tokens would begin
# in the middle of a turn. `best_fit` puts several whole conversations in a row, and `overlong="drop"` leaves out a
# conversation that is longer than one:

# %%
for packing in ("concat", "document_padded", "best_fit"):
    packed = TokenDataset("store/chats", "train", SEQ_LEN, packing=packing)
    shares = packed.packing_shares()
    print(f"{packing:16}{len(packed):6,} samples{shares.padding_share:8.2%} padding{shares.cut_share:9.2%} cut")

# %% [markdown]
# In a packed row, no conversation may see its neighbours. `document_mask` makes the mask of attention from
# `document_ids`, and `position_ids` count from 0 in each conversation. Padding at the end is like one more document.

# %%
import numpy as np

batch = next(TokenLoader(opened("train"), BATCH_SIZE, seed=0))
row = max(range(BATCH_SIZE), key=lambda row: len(np.unique(batch["classes"][row])))  # one with many roles
documents, roles, labels = (batch[name][row].numpy() for name in ("document_ids", "classes", "labels"))
starts = np.flatnonzero(np.diff(documents, prepend=-2))
print("documents begin at", starts.tolist(), "with the positions", batch["position_ids"][row, starts].tolist())

ROLES = ["template", "text", "system", "developer", "user", "assistant", "reasoning", "tool_call", "tool_output"]
figure, (left, right) = lesson.chart("token", "token", "What a token sees", columns=2)
left.imshow(document_mask(batch["document_ids"]).dense()[row, 0].numpy(), cmap="Blues", interpolation="nearest")
left.grid(False)
for color, chosen in ((lesson.GREY, labels == -100), (lesson.ORANGE, labels != -100)):
    right.plot(np.flatnonzero(chosen), roles[chosen] & 15, "|", color=color)
right.set(yticks=[0, *range(4, 9)], yticklabels=[ROLES[0], *ROLES[4:]], ylabel="")
right.set_title("Roles; orange: learned", loc="left")
lesson.save_chart(
    figure, "conversations-row.svg", "A triangle of attention for each conversation; only replies are learned"
)

# %% [markdown]
# ## Train
#
# The model is a small GPT, which gets the mask and the positions of each batch.

# %%
import time

import torch
from torch import nn

WIDTH, HEADS = 64, 4


class Model(nn.Module):
    """Predict the next token of each conversation of a row."""

    def __init__(self, vocab_size):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, WIDTH), nn.Embedding(SEQ_LEN, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocab_size)

    def losses(self, batch):
        """Return the loss of each label, (B, T); 0 where the label is not a target."""
        x = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        forbidden = ~document_mask(batch["document_ids"]).dense()
        x = self.blocks(x, forbidden.expand(-1, HEADS, -1, -1).flatten(0, 1))
        return nn.functional.cross_entropy(self.head(x).transpose(1, 2), batch["labels"], reduction="none")


# %% [markdown]
# One model learns what the assistant writes, the other one everything. Both are evaluated on every token, and the field
# `classes` divides the losses by role: those of the assistant are 5 to 7, those of the user and the tool 4 and 8.

# %%
GROUPS = {"replies": (5, 6, 7), "prompts": (4, 8)}
NUM_STEPS, EVERY = lesson.sized((240, 30), (2, 1))
every_token = opened("validation", "all")


@torch.no_grad()
def evaluate(model):
    """Return the loss on replies and the loss on prompts, in nats per token."""
    sums = {group: np.zeros(2) for group in GROUPS}
    for batch in EvaluationPass(every_token, BATCH_SIZE):
        losses, counts = model.losses(batch), batch["labels"] != -100
        for group, roles in GROUPS.items():
            chosen = counts & torch.isin(batch["classes"] & 15, torch.tensor(roles))
            sums[group] += float(losses[chosen].sum()), int(chosen.sum())
    return {group: total / count for group, (total, count) in sums.items()}


def train(learn):
    """Return a model that learned some tokens, and {step: its losses}."""
    torch.manual_seed(0)
    data = opened("train", learn)
    model = Model(data.manifest["tokenizer"]["vocab_size"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    curves = {0: evaluate(model)}
    for step, batch in zip(range(1, NUM_STEPS + 1), TokenLoader(data, BATCH_SIZE, seed=0), strict=False):
        loss = model.losses(batch).sum() / batch["num_targets"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            curves[step] = evaluate(model)
    return model, curves


trained, curves, seconds = {}, {}, {}
for learn in ("assistant", "all"):
    start = time.perf_counter()
    trained[learn], curves[learn] = train(learn)
    seconds[learn] = time.perf_counter() - start

figure, axes = lesson.chart("step", "nats per token", columns=2)
for axis, group in zip(axes, GROUPS, strict=True):
    for learn, color in zip(curves, (lesson.BLUE, lesson.ORANGE), strict=True):
        losses = [losses[group] for losses in curves[learn].values()]
        axis.plot(list(curves[learn]), losses, "-o", color=color, label=f'learn="{learn}"')
    axis.set_title(f"Loss on {group}", loc="left")
    axis.legend()
lesson.save_chart(figure, "conversations-losses.svg", "The loss on replies and on prompts, for both policies")

# %%
for learn, losses in curves.items():
    print(f"learn={learn}:", ", ".join(f"{loss:.3f} on {group}" for group, loss in losses[NUM_STEPS].items()))
print(f"a guess among {bpe.get_vocab_size()} ids: {np.log(bpe.get_vocab_size()):.3f}")

# %% [markdown]
# The one that learns only replies is better at them: its steps are not spent on order numbers. Of prompts it knows less
# than a guess. The difference is large here, since the prompts are random and the steps few. A loss on all tokens shows
# neither, so measure replies and prompts apart.
#
# ## The mean of the loss
#
# Batches differ in their number of targets, `num_targets`. A mean of the batches' means depends on the batch size, for
# the same model and conversations. The sum of all losses divided by the number of all targets does not:


# %%
@torch.no_grad()
def two_means(learn, batch_size):
    """Return the mean of the batches' means, the mean over all targets, and how many targets a batch has."""
    loader = TokenLoader(opened("validation", learn), batch_size, num_epochs=1, drop_last=False)
    found = [(trained["assistant"].losses(batch).sum().item(), batch["num_targets"]) for batch in loader]
    sums, counts = np.array(found).T
    with np.errstate(invalid="ignore"):
        return (sums / counts).mean(), sums.sum() / counts.sum(), counts


means = {batch_size: two_means("assistant", batch_size) for batch_size in (1, 4, 16)}
for batch_size, (naive, weighted, counts) in means.items():
    print(f"batch size {batch_size:>2}: {counts.min():>4.0f} to {counts.max():>5.0f} targets,", end=" ")
    print(f"mean of means {naive:.4f}, mean over targets {weighted:.4f}")
naive, weighted, counts = two_means(["tool_call"], 1)
print(f"tool calls, batch size 1: {(counts == 0).sum()} of {len(counts)} batches without a target,", end=" ")
print(f"mean of means {naive:.4f}, mean over targets {weighted:.4f}")

# %% [markdown]
# In the last line, the model is asked for tool calls only. Some batches have none, and 0 / 0 is not a number: one such
# batch would ruin a training. With several ranks or accumulated batches, add up losses and targets before you divide:
# [targets](../../docs/guides/training.md#the-mean-of-the-loss) shows how.
#
# ## Measured

# %%
packed, steps_per_second = opened("train"), NUM_STEPS / seconds["assistant"]
last = {learn: losses[NUM_STEPS] for learn, losses in curves.items()}
lesson.show_table(
    ("conversations built", f"{len(rows) - 1:,} of {len(rows):,} rows"),
    ("time of the build", f"{build.wall_seconds:.1f} s"),
    ("rows of packed conversations", f"{len(packed):,}"),
    ("padding in them", f"{packed.packing_shares().padding_share:.1%}"),
    ("training, with evaluations", f"{steps_per_second * BATCH_SIZE * SEQ_LEN:,.0f} tokens/s"),
    ('loss on replies, learn="assistant"', f"{last['assistant']['replies']:.3f}"),
    ('loss on replies, learn="all"', f"{last['all']['replies']:.3f}"),
    ('loss on prompts, learn="assistant"', f"{last['assistant']['prompts']:.3f}"),
    ('loss on prompts, learn="all"', f"{last['all']['prompts']:.3f}"),
    ("error of the mean of means, batch size 1", f"{means[1][0] / means[1][1] - 1:+.1%}"),
    ("error of the mean of means, batch size 16", f"{means[16][0] / means[16][1] - 1:+.1%}"),
)
