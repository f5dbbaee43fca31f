"""A chat template: the text that it makes of a conversation, as transformers renders it.

A template gets the functions and settings of transformers, without those that differ from run to run.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.parser
import jinja2.sandbox
from jinja2 import TemplateError, nodes

from tokenloom.chat.conversation import ChatDefinition
from tokenloom.chat.marks import NO_MESSAGE, Marked
from tokenloom.errors import BadConversation, InputError, SpecError, message_of

TEMPLATE = "template"  # the reason of a row that its template does not render
MAX_SECONDS = 60.0  # time limit of a rendering; conversations of 2 MB take 1 s
_ROUNDS, _BLOCK = "(rounds)", "(block)"  # filters that no template can name
_DIRECTIVE = re.compile(r"%[-_0^#+:\d]*[EO]?(.)", re.DOTALL)  # a directive of strftime with the flags of the C library
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict)
_VALUES = (str, int, float, type(None), jinja2.Undefined)
_OF_DICT = frozenset(dir(dict))


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with the settings and functions of transformers.

    Args:
        to_json: the filter `tojson`.
        generation: returns what is written for a block `generation`, given its text and the values of the variables of
            the loops and macros around it.
        date: YYYY-MM-DD for `strftime_now`; None if a template must not ask.
    """

    has_generation = False  # whether the compiled template has a block of generation

    def __init__(
        self,
        to_json: Callable[..., str],
        generation: Callable[[str, tuple[Any, ...]], str],
        date: str | None,
    ) -> None:
        extensions = [_Generation, jinja2.ext.loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, finalize=with_text, extensions=extensions)
        self._deadline, self._are_safe = 0.0, dict[tuple[type, str], bool]()
        del self.filters["random"], self.globals["lipsum"]  # random
        self.filters |= {"tojson": to_json, _BLOCK: generation, _ROUNDS: self._rounds}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _clock(date)}

    def compiled(self, source: str) -> jinja2.Template:
        """Return a template whose loops look at the time; raises TemplateSyntaxError if it is not valid."""
        tree = self.parse(source)
        _give_variables(tree, (), in_block=False)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _ROUNDS, [], [], None, None)
        self.has_generation = any(map(_is_block, tree.find_all(nodes.FilterBlock)))
        tree.set_environment(self)
        return self.template_class.from_code(self, self.compile(tree), dict(self.globals))

    def start(self) -> None:
        """Begin a rendering: from now on, its time counts."""
        self._deadline = time.monotonic() + MAX_SECONDS

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise InputError(f"the template takes more than {MAX_SECONDS:.0f} s; give another, or leave the row out")

    @jinja2.pass_context  # so that Jinja does not call it for the list of a loop that it knows before it renders
    def _rounds(self, _: Any, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._check_time()
            yield item

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, a macro, or a loop for its children."""
        self._check_time()
        return super().call(*args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up an attribute as Jinja's sandbox does, faster for the keys of a message."""
        if type(obj) is dict and attribute in obj and attribute not in _OF_DICT:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Ask Jinja's sandbox once for each type of object, which is all that its answer depends on."""
        key = (type(obj), attr)
        if key not in self._are_safe:
            self._are_safe[key] = super().is_safe_attribute(obj, attr, value)
        return self._are_safe[key]

    def call_filter(self, *args: Any, **kwargs: Any) -> Any:
        """Call a filter for an item of `map`."""
        self._check_time()
        return super().call_filter(*args, **kwargs)


def with_text(value: Any) -> Any:
    """Return a value that a template writes: text, a number, a boolean, none, or lists and mappings of them.

    Raises TemplateError for any other, whose text may be a place in memory, which differs from run to run.
    """
    if isinstance(value, _CONTAINERS):
        for one in (*value.keys(), *value.values()) if isinstance(value, dict) else value:
            with_text(one)
    elif not isinstance(value, _VALUES):
        raise TemplateError(f"it writes an object of type {type(value).__name__}; call it with brackets")
    return value


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the escapes of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> str:
    raise TemplateError(str(message))


def _clock(date: str | None) -> Callable[[str], str]:
    def strftime_now(pattern: str) -> str:
        if date is None:
            raise SpecError("chat.template: it asks for the day (strftime_now); give chat.date, such as 2026-11-25")
        for match in _DIRECTIVE.finditer(pattern):
            if match[1] in "szZ":
                raise TemplateError(f"strftime_now({match[0]!r}) depends on the time zone of the machine; remove it")
        return datetime.fromisoformat(date).strftime(pattern)

    return strftime_now


class _Generation(jinja2.ext.Extension):
    """The tag `{% generation %} ... {% endgeneration %}` around what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        """Return a block whose text is filtered, and before it, since it may set them, the variables for the filter."""
        line = next(parser.stream).lineno
        variables = parser.free_identifier(line)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.FilterBlock(body, nodes.Filter(None, _BLOCK, [variables], [], None, None), lineno=line)
        return [nodes.Assign(variables, nodes.Tuple([], "load"), lineno=line), block]


def _is_block(node: nodes.Node) -> bool:
    return isinstance(node, nodes.FilterBlock) and node.filter.name == _BLOCK


def _give_variables(node: nodes.Node, names: tuple[str, ...], *, in_block: bool) -> None:
    """Give the blocks of `generation` the variables of the loops and macros around them, the innermost last."""
    if isinstance(node, nodes.For):
        targets = [node.target] if isinstance(node.target, nodes.Name) else node.target.find_all(nodes.Name)
        names += tuple(name.name for name in targets)
        in_block = False
    elif isinstance(node, nodes.Macro):
        names += tuple(name.name for name in node.args)
    elif isinstance(node, nodes.Assign) and isinstance(node.target, nodes.InternalName):
        node.node = nodes.Tuple([nodes.Name(name, "load") for name in names], "load")
    elif isinstance(node, nodes.Break | nodes.Continue) and in_block:
        raise jinja2.TemplateSyntaxError("a loop can't end, or go on, in a block of generation", node.lineno)
    for child in node.iter_child_nodes():
        _give_variables(child, names, in_block=in_block or _is_block(node))


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
        self._indices: dict[int, int] = {}  # indices of the messages rendered with marks, by identity
        self._sandbox = Sandbox(self._to_json, self._around_generation, definition.date)
        try:
            self._template = self._sandbox.compiled(definition.template)
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:  # the last two: too deep for Python
            line = f" in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            problem = f"{message_of(error)}{line}; repair it, or give another"
            raise SpecError(f"chat.template is not a template of Jinja: {problem}") from error
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
        variables = {"messages": given, "tools": tools, "documents": None} | self._given
        context = self._template.new_context({"add_generation_prompt": add_generation_prompt} | variables)
        try:
            return "".join(self._template.root_render_func(context))
        except (SpecError, InputError, MemoryError):  # not of the row, so it must not be skipped
            raise
        except Exception as error:  # a template can make Python raise anything
            problem = f"the template does not render it ({message_of(error)})"
            raise BadConversation(f"{problem}; repair the row, or give another chat.template", TEMPLATE) from error

    def _to_json(self, value: Any, *args: Any, **kwargs: Any) -> str:
        """Return JSON, with the marks of a value that has some."""
        text = to_json(value, *args, **kwargs)
        return text if self._marked is None else self._marked.around_json(value, text)

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
    return {name: value for name, value in message.items() if name not in ("train", "train_detail")}
