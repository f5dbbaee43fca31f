"""The words that say what a build did, for the command line and for the state, log, summary and event of a run.

    published /data/store/news@9b10fdce75a87b42: 901,053 tokens in 20,918 documents, 3 shards, in 4.1 s;
    12 of 27 partitions reused; tokenizer gpt2 (tiktoken), 50,257 ids

Here on two lines, there on one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenloom.storage.words import counted

#: in every message of a run that crashed or was cancelled
GOES_ON = "Retry, or the next run of the same spec, goes on from what is done"


def outcome_line(result: Mapping[str, Any]) -> str:
    """Return in one line what a build did.

    Args:
        result: see BuildResult.to_json.
    """
    holds = f"{result['tokens']:,} tokens in {counted(result['documents'], 'document')}"
    holds += f", {counted(result['shards'], 'shard')}"
    seconds = duration(result["seconds"])
    if result["published"]:
        parts = [f"published {result['reference']}: {holds}, in {seconds}"]
    else:
        parts = [f"up to date, nothing new to publish: {result['reference']} has {holds}", f"checked in {seconds}"]
    if result["partitions"] is not None:
        parts.append(f"{result['partitions_reused']:,} of {counted(result['partitions'], 'partition')} reused")
    tokenizer = result["tokenizer"]
    parts.append(f"tokenizer {tokenizer['name']} ({tokenizer['kind']}), {tokenizer['vocab_size']:,} ids")
    return "; ".join(parts)


def reading_lines(reference: str) -> str:
    """Return two lines of Python that open a version."""
    quoted = json.dumps(reference, ensure_ascii=False)
    return f'from tokenloom import TokenDataset\ndata = TokenDataset({quoted}, split="train", seq_len=2048)'


def outcome(result: Mapping[str, Any]) -> str:
    """Return what a build did, and how to read what it published: three lines."""
    return f"{outcome_line(result)}\n{reading_lines(result['reference'])}"


def crash_message(reason: str) -> str:
    """Return in one line why a run ended before its end, and that the work it has done is kept.

    Args:
        reason: what ended it; returned as it is if it says the rest already.
    """
    return reason if GOES_ON in reason else "; ".join(filter(None, (one_line(reason).rstrip("."), GOES_ON)))


def one_line(text: str) -> str:
    """Return a text of several lines, such as a list of problems, in one: `in the spec: this; that`."""
    lines = [line.strip().removeprefix("- ") for line in text.splitlines() if line.strip()]
    return "; ".join(lines).replace(":; ", ": ")


def duration(seconds: float) -> str:
    """Return a time in words: `12.3 s`, `5 min 12 s`, `2 h 5 min`."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours:,} h {left} min" if hours else f"{minutes} min {rest} s"
