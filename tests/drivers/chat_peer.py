"""The ids and masks that transformers gives conversations, as a program for an environment of its own.

    python chat_peer.py JOB

JOB is a JSON file with the keys tokenizer (the path of a tokenizer.json), names (special tokens by name), template (its
text), conversations (the path of normalized ones, a JSON object a line), date (the present day of strftime_now) and out
(the path of the result, a .npz). The arrays of the result:

    errors            (num,) the message of the error that refused a conversation; empty if none did
    tokens, mask      of all conversations, one after the other; ends (num,) says where each ends
    broken            (num,) bool: transformers found no token at the start or the end of a generated text, and then its
                      mask ends too early; it takes the first token for none at an end, and then its mask ends too late
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
from transformers.utils import chat_template_utils


def _strings(value: Any) -> Any:
    """Yield the strings in a JSON value, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _watch(found: list[int | None]) -> None:
    """Note in `found` each token that transformers finds at a place: two for each generated text."""
    find = transformers.BatchEncoding.char_to_token

    def char_to_token(self: Any, *place: int) -> int | None:
        token: int | None = find(self, *place)
        found.append(token)
        return token

    transformers.BatchEncoding.char_to_token = char_to_token


def _fix_the_date(date: str) -> None:
    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromisoformat(date)

    chat_template_utils.datetime = Fixed


class _Results:
    """What conversations became, as the arrays of the result."""

    def __init__(self) -> None:
        self.each: dict[str, list[Any]] = {
            name: [] for name in ("errors", "broken", "spells", "ends", "sanitized_ends")
        }
        self.joined: dict[str, list[int]] = {name: [] for name in ("tokens", "mask", "sanitized")}

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
        np.savez(path, **arrays | {"mask": arrays["mask"].astype(bool)})  # type: ignore[arg-type]  # its last keyword


def main(job: dict[str, Any]) -> None:
    """Write the arrays of a job."""
    _fix_the_date(job["date"])
    places: list[int | None] = []
    _watch(places)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=job["tokenizer"], **job["names"])
    tokenizer.chat_control_tokens = []  # special tokens alone
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    results = _Results()
    for line in Path(job["conversations"]).read_text("utf-8").split("\n")[:-1]:
        conversation = json.loads(line)
        given = {"tools": conversation.get("tools"), "chat_template": job["template"], "return_dict": True}
        spells = any(name in text for text in _strings(conversation) for name in special)
        found: dict[str, Any] = {"errors": "", "spells": spells, "broken": False}
        places.clear()
        try:
            encoded = tokenizer.apply_chat_template(
                conversation["messages"], return_assistant_tokens_mask=True, **given
            )
            found |= {"tokens": encoded["input_ids"], "mask": encoded["assistant_masks"]}
            found["broken"] = None in places or 0 in places[1::2]
            if spells:
                clean = tokenizer.apply_chat_template(conversation["messages"], sanitize_control_tokens=True, **given)
                found["sanitized"] = clean["input_ids"]
        except Exception as error:  # noqa: BLE001  a template may raise anything
            found["errors"] = f"{type(error).__name__}: {error}"[:200]
        results.add(**found)
    results.write(job["out"])


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
