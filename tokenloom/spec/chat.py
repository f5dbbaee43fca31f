"""Conversations in a spec: the options of sources that have them, and the block `chat`, which renders them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tokenloom.spec.base import Location, SpecModel, as_list
from tokenloom.spec.values import LAYOUTS
from tokenloom.storage.formats.records import canonical_json

OF_TOKENIZER = "tokenizer"  # the template that comes with the tokenizer
TEMPLATES = ("chatml", "gemma", "llama3", "phi3", "zephyr")  # files of tokenloom/chat/templates


def _known_layout(name: str) -> str:
    if name not in LAYOUTS:
        raise ValueError(f"must be one of {', '.join(LAYOUTS)}")
    return name


Layout = Annotated[str, AfterValidator(_known_layout)]  # not an enum, for which Prefect's server refuses null


#: how sources of each kind name conversations; CSV allows positions
MESSAGES = "In place of `text`: column or key with a conversation, or its JSON; `.` if each row is one"
TOOLS = "Column or key with the tools of a conversation, or their JSON; default: `tools`, where rows have it"
_NAMES = ", ".join(f"`{name}`" for name in LAYOUTS)
LAYOUT = f"How a row holds a conversation: {_NAMES}; by default, recognized from the first rows"


def _json_values(value: dict[str, Any]) -> dict[str, Any]:
    try:
        canonical_json(value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "must be JSON values: text, numbers, true, false, null, lists, mappings; quote dates"
        ) from error
    return value


def _date_as_text(value: Any) -> Any:
    return value.isoformat() if type(value) is datetime.date else value  # YAML reads 2026-11-25 as a date


def _day(value: str) -> str:
    try:
        return datetime.date.fromisoformat(value).isoformat()
    except ValueError as error:
        raise ValueError("must be a day as YYYY-MM-DD, such as 2026-11-25") from error


class ChatRules(SpecModel):
    """How conversations become text: a chat template, and what it is given."""

    path_fields: ClassVar[tuple[str, ...]] = ("template",)
    template: Location = Field(
        OF_TOKENIZER,
        description="File of a Jinja chat template, such as `mine.jinja`; `tokenizer`: the one that comes with the "
        f"tokenizer; or one of ours: {', '.join(f'`{name}`' for name in TEMPLATES)}",
    )
    arguments: Annotated[dict[str, Any], AfterValidator(_json_values)] = Field(
        {}, description="Variables of the template, such as `{enable_thinking: false}`"
    )
    date: Annotated[str, BeforeValidator(_date_as_text), AfterValidator(_day)] | None = Field(
        None,
        description="The day that a template gets that asks for the present one, as YYYY-MM-DD; such a template "
        "requires it",
    )
    stop_tokens: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(as_list)] = Field(
        [],
        description="Tokens that end a turn of the assistant, such as `<|im_end|>`; empty: the last special "
        "token before the next message",
    )
    special_tokens_in_content: Literal["text", "fail", "token"] = Field(
        "text",
        title="Special tokens in messages",
        description="What the spelling of a special token in a message becomes: `text`, a bad row (`fail`), or the "
        "`token`",
    )

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield (field, path) of the template, unless it is that of the tokenizer or one of ours."""
        yield from (item for item in super().paths() if item[1] not in (OF_TOKENIZER, *TEMPLATES))
