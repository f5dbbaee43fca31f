"""A chat template: the text that it makes of a conversation, as transformers renders it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from tokenloom.chat.definition import ChatDefinition
from tokenloom.chat.marks import NO_MESSAGE, Marked
from tokenloom.chat.sandbox import DateError, Sandbox, TimeError, to_json
from tokenloom.errors import BadConversation, InputError, SpecError, message_of

TEMPLATE = "template"  # the reason of a row that its template does not render
_DATE_ADVICE = "give chat.date, such as 2026-11-25, so that a row has the same ids every day"
_TIME_ADVICE = "give another chat.template, or leave the row out"


class ChatTemplate:
    """A template of a definition, compiled once.

    Attributes:
        has_generation: whether it says itself what the assistant writes.

    Args:
        definition: the template and what it is given.

    Raises SpecError if the template is not valid.
    """

    def __init__(self, definition: ChatDefinition) -> None:
        self._marked: Marked | None = None
        self._indices: dict[int, int] = {}  # of the messages that are rendered with marks, by their identity
        self._sandbox = Sandbox(self._to_json, self._around_generation, definition.date)
        try:
            self._template = self._sandbox.compiled(definition.template)
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:  # of Python: an expression too deep for it
            line = f" in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise SpecError(
                f"chat.template is not a template of Jinja: {message_of(error)}{line}; repair it, or give another"
            ) from error
        self.has_generation = self._sandbox.has_generation
        self._given = {**definition.special_tokens, **definition.arguments}

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Any = None, *, add_generation_prompt: bool = False
    ) -> str:
        """Return the text of a conversation.

        Raises BadConversation if the template refuses it, fails or exceeds a limit.
        """
        self._marked = None
        return self._rendered(messages, tools, add_generation_prompt)

    def render_marked(self, marked: Marked, *, add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation with its marks, and marks around the text of `generation`."""
        self._marked = marked
        return self._rendered(marked.messages, marked.tools, add_generation_prompt)

    def _rendered(self, messages: Sequence[Mapping[str, Any]], tools: Any, add_generation_prompt: bool) -> str:
        given = list(map(_given, messages))
        self._indices = {id(message): index for index, message in enumerate(given)} if self._marked else {}
        self._sandbox.start()
        context = self._template.new_context(
            {
                "messages": given,
                "tools": tools,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                **self._given,
            }
        )
        try:
            return "".join(self._template.root_render_func(context))
        except DateError as error:
            raise SpecError(f"chat.template: {message_of(error)}; {_DATE_ADVICE}") from error
        except TimeError as error:
            raise InputError(f"the template takes too long: {message_of(error)}; {_TIME_ADVICE}") from error
        except MemoryError:  # depends on the machine, so the row must not be skipped
            raise
        except Exception as error:  # a template can make Python raise anything
            problem = message_of(error)
            raise BadConversation(
                f"the template does not render it ({problem}); repair the row, or give another chat.template", TEMPLATE
            ) from error

    def _to_json(self, value: Any, *args: Any, **kwargs: Any) -> str:
        """Return JSON, with the marks of a value that has some."""
        text = to_json(value, *args, **kwargs)
        return text if self._marked is None else self._marked.marks.around_json(value, text)

    def _around_generation(self, text: str, variables: tuple[Any, ...]) -> str:
        """Return the text of a block `generation`, with marks that say which message it is of."""
        if self._marked is None:
            return text
        found = [self._indices[id(variable)] for variable in variables if id(variable) in self._indices]
        return self._marked.around_block(text, found[-1] if found else NO_MESSAGE)


def _given(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message as templates get it: without a weight, and its reasoning has also the name of gpt-oss."""
    if "reasoning_content" in message:
        message = {"thinking": message["reasoning_content"], **message}
    if "train" in message or "train_detail" in message:
        message = {name: value for name, value in message.items() if name not in ("train", "train_detail")}
    return message
