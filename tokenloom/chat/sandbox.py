"""The environment in which a chat template runs: what transformers gives it, without what differs from run to run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.parser
import jinja2.sandbox
from jinja2 import TemplateError, nodes

MAX_SECONDS = 60.0  # for one rendering; conversations of 2 MB take 1 s
_ROUND, _BLOCK = "(round)", "(block)"  # filters that no template can name
_DIRECTIVE = re.compile(r"%[-_0^#+:\d]*[EO]?(.)", re.DOTALL)  # of strftime, with the flags of the C library
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict)
_VALUES = (str, int, float, type(None), jinja2.Undefined)
_OF_DICT = frozenset(dir(dict))
_REPEATED: tuple[Any, ...] = (str, list, tuple)
_MAX_REPEATED = 100_000_000  # items of `text * number`
_MAX_BITS = 100_000  # of a power


class DateError(TemplateError):
    """A template asks for the present day."""


class TimeError(TemplateError):
    """A rendering takes longer than MAX_SECONDS."""


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with the settings and functions of transformers.

    Args:
        to_json: the filter `tojson`.
        generation: returns what is written for a block `generation`, given its text and the values of the variables of
            the loops and macros around it.
        date: YYYY-MM-DD for `strftime_now`; None if a template must not ask.
    """

    has_generation = False  # of the template that was compiled
    intercepted_binops = frozenset(["*", "**"])

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
        self.filters |= {"tojson": to_json, _BLOCK: generation, _ROUND: self._check_time}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _clock(date)}

    def compiled(self, source: str) -> jinja2.Template:
        """Return a template whose loops and macros look at the time; raises TemplateSyntaxError if it is not valid."""
        tree = self.parse(source)
        _give_variables(tree, (), in_block=False)
        check: Any = nodes.Filter(nodes.Const(0), _ROUND, [], [], None, None)
        node: Any
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            node.body.insert(0, nodes.ExprStmt(check))
            if isinstance(node, nodes.For) and node.test is not None:
                node.test = nodes.And(nodes.Not(check), node.test)
        self.has_generation = any(map(_is_block, tree.find_all(nodes.FilterBlock)))
        tree.set_environment(self)
        return self.template_class.from_code(self, self.compile(tree), dict(self.globals))

    def start(self) -> None:
        """Begin a rendering: from now on, its time counts."""
        self._deadline = time.monotonic() + MAX_SECONDS

    @jinja2.pass_context  # so that it is not called when a template is compiled
    def _check_time(self, *_: Any) -> None:
        if time.monotonic() > self._deadline:
            raise TimeError(f"it takes more than {MAX_SECONDS:.0f} s")

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return what Jinja's sandbox returns, faster for the keys of a message."""
        if type(obj) is dict and attribute in obj and attribute not in _OF_DICT:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return what Jinja's sandbox says, which asks only for the type of an object."""
        key = (type(obj), attr)
        if key not in self._are_safe:
            self._are_safe[key] = super().is_safe_attribute(obj, attr, value)
        return self._are_safe[key]

    def call_filter(self, *args: Any, **kwargs: Any) -> Any:
        """Call a filter for an item of `map`."""
        self._check_time()
        return super().call_filter(*args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Return a product or a power; raises TemplateError for `'a' * 10**10`, which no check of time could end."""
        items, number = (left, right) if isinstance(right, int) else (right, left)
        if isinstance(number, int) and isinstance(items, _REPEATED) and len(items) * number > _MAX_REPEATED:
            raise TemplateError(f"it repeats a text or a list to {len(items) * number:,} items")
        is_power = operator == "**" and isinstance(left, int) and isinstance(right, int)
        if is_power and left.bit_length() * right > _MAX_BITS:
            raise TemplateError("it raises a number to a power that is too large")
        return super().call_binop(context, operator, left, right)


def with_text(value: Any) -> Any:
    """Return a value that a template writes: text, a number, a boolean, none, or lists and mappings of them.

    Raises TemplateError for any other, whose text may be a place in memory, which differs from run to run.
    """
    if isinstance(value, _CONTAINERS):
        for one in (*value.keys(), *value.values()) if isinstance(value, dict) else value:
            with_text(one)
    elif not isinstance(value, _VALUES):
        name = getattr(value, "__name__", "")
        hint = f": write {name}(), with brackets" if callable(value) and name.isidentifier() else ""
        raise TemplateError(f"it writes an object of type {type(value).__name__}, which has no text{hint}")
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
            raise DateError("it asks for the present day (strftime_now)")
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
