"""Read the chat template and special tokens of a build, which are then part of the version's name."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from tokenloom.chat.conversation import ChatDefinition
from tokenloom.errors import InputError, SpecError
from tokenloom.spec.blocks import OF_TOKENIZER, TEMPLATES
from tokenloom.storage.formats.records import canonical_json
from tokenloom.tasks.sources.files import info_of, open_input
from tokenloom.tokenizers.model_files import CONFIG, SPECIAL_TOKENS, TEMPLATE_FILE, chat_files
from tokenloom.wording import tokenizer_name

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec.build_spec import BuildSpec

_MAX_BYTES = 2_000_000  # largest template; those of models have up to 20 KB


def chat_definition(spec: BuildSpec, definition: dict[str, Any]) -> ChatDefinition:
    """Return the template and tokens for the conversations of a build, of which a source has some.

    Args:
        spec: with absolute paths.
        definition: of its tokenizer, with its pinned_fields.

    Raises:
        SpecError: the template can't be read, or there is none. Workers compile it: see document_encoder.
        TokenizerError: a file that comes with the tokenizer is wrong.
    """
    rules, found = spec.chat, chat_files(definition)
    file = rules.template
    if file in TEMPLATES:
        file = str(resources.files("tokenloom.chat") / f"templates/{file}.jinja")
    template = found.template if file == OF_TOKENIZER else _template_file(file)
    if template is None:
        raise SpecError(
            f"chat.template: {_named(definition)} comes without a chat template, which a {TEMPLATE_FILE} or "
            f"{CONFIG} beside its file would hold; give chat.template: FILE, or one of ours: {', '.join(TEMPLATES)}"
        )
    given = {name: value for name, value in rules.arguments.items() if name in SPECIAL_TOKENS}
    tokens = {name: value for name, value in (found.special_tokens | given).items() if isinstance(value, str)}
    return ChatDefinition(
        template=template,
        arguments=json.loads(canonical_json(rules.arguments)),  # in the order of their keys, as names have them
        date=None if rules.date is None else rules.date.isoformat(),
        special_tokens=tokens,
        stop_tokens=tuple(rules.stop_tokens),
        special_tokens_in_content=rules.special_tokens_in_content,
    )


def _named(definition: dict[str, Any]) -> str:
    name = definition.get("name") or definition["kind"]
    return f"tokenizer {tokenizer_name(name, definition['kind'], definition)}"


def _template_file(url: str) -> str:
    """Return the text of a template's file."""
    if url.endswith(".json"):
        raise SpecError(
            f"chat.template: {url} is JSON, not the text of a template; give a file such as {TEMPLATE_FILE}, or the "
            "folder of the tokenizer as tokenizer.path"
        )
    try:
        size = info_of(url)["size"]
        if size > _MAX_BYTES:
            raise SpecError(f"chat.template: {url} has {size:,} bytes, too many for a template; check the path")
        with open_input(url) as file:
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"chat.template: {url}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except InputError as error:
        raise SpecError(f"chat.template: {error}, or name one of ours: {', '.join(TEMPLATES)}") from error
