"""The ids and masks that transformers gives conversations, as a program for an environment of its own.

    python chat_peer.py JOB

JOB is a JSON file with the keys tokenizer (the path of a tokenizer.json), names (special tokens by name), template (its
text), conversations (the path of normalized ones, a JSON object a line), date (the present day of strftime_now) and out
(the path of the result, a .npz). The arrays of the result:

    errors            (num,) the message of the error that refused a conversation; empty if none did
    tokens, mask      of all conversations, one after the other; ends (num,) says where each ends
    overlapping       of all conversations: the tokens that overlap a generated text, by the offsets of the tokenizer;
                      `mask` is what transformers makes of them, from the tokens of the first and the last character
    spells            (num,) bool: a string of the conversation spells a special token
    sanitized         ids of those that spell one with sanitize_control_tokens, sanitized_ends (num,) their ends
"""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from transformers import tokenization_utils_base
from transformers.utils import chat_template_utils


def _strings(value: Any) -> Any:
    """Yield the strings in a JSON value, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _watch(found: list[tuple[int, int]]) -> None:
    """Put into `found` where the generated texts of the last conversation are, in characters."""
    render = tokenization_utils_base.render_jinja_template

    def render_jinja_template(*arguments: Any, **options: Any) -> Any:
        texts, places = render(*arguments, **options)
        found[:] = places[0] if places else []
        return texts, places

    tokenization_utils_base.render_jinja_template = render_jinja_template


def _overlapping(encoded: Any, places: list[tuple[int, int]]) -> list[bool]:
    """Return whether each token overlaps one of some places."""
    starts, ends = np.array(encoded.encodings[0].offsets, np.int64).reshape(-1, 2).T
    found = np.zeros(len(starts), bool)
    for start, end in places:
        found |= (starts < end) & (ends > start)
    flags: list[bool] = found.tolist()
    return flags


def _fix_the_date(date: str) -> None:
    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromisoformat(date)

    chat_template_utils.datetime = Fixed


class _Results:
    """What conversations became, as the arrays of the result."""

    def __init__(self) -> None:
        self.each: dict[str, list[Any]] = {name: [] for name in ("errors", "spells", "ends", "sanitized_ends")}
        self.joined: dict[str, list[int]] = {name: [] for name in ("tokens", "mask", "overlapping", "sanitized")}

    def add(self, **found: Any) -> None:
        """Add a conversation."""
        for name, ids in self.joined.items():
            ids += found.pop(name, [])
        found |= {"ends": len(self.joined["tokens"]), "sanitized_ends": len(self.joined["sanitized"])}
        for name, values in self.each.items():
            values.append(found[name])

    def write(self, path: str) -> None:
        """Write the arrays."""
        arrays = {name: np.array(values) for name, values in self.each.items()}
        arrays |= {name: np.array(values, np.uint32) for name, values in self.joined.items()}
        arrays |= {name: arrays[name].astype(bool) for name in ("mask", "overlapping")}
        np.savez(path, **arrays)  # type: ignore[arg-type]  # its last keyword


def main(job: dict[str, Any]) -> None:
    """Write the arrays of a job."""
    _fix_the_date(job["date"])
    places: list[tuple[int, int]] = []
    _watch(places)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=job["tokenizer"], **job["names"])
    tokenizer.chat_control_tokens = []  # special tokens alone
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    results = _Results()
    for line in Path(job["conversations"]).read_text("utf-8").split("\n")[:-1]:
        conversation = json.loads(line)
        given = {"tools": conversation.get("tools"), "chat_template": job["template"], "return_dict": True}
        spells = any(name in text for text in _strings(conversation) for name in special)
        found: dict[str, Any] = {"errors": "", "spells": spells}
        try:
            encoded = tokenizer.apply_chat_template(
                conversation["messages"], return_assistant_tokens_mask=True, **given
            )
            found |= {"tokens": encoded["input_ids"], "mask": encoded["assistant_masks"]}
            found["overlapping"] = _overlapping(encoded, places)
            if spells:
                clean = tokenizer.apply_chat_template(conversation["messages"], sanitize_control_tokens=True, **given)
                found["sanitized"] = clean["input_ids"]
        except Exception as error:  # noqa: BLE001  a template may raise anything
            found["errors"] = f"{type(error).__name__}: {error}"[:200]
        results.add(**found)
    results.write(job["out"])


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
