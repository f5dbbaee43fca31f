"""The environment in which a chat template runs: what transformers gives it, and limits on what it can take.

What is left out of Jinja: filters that no known template uses and that could exceed the limits, and those that are
random.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import jinja2
import jinja2.ext
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
from jinja2 import TemplateError

from tokenloom.chat.compiling import (
    BLOCK,
    COMPARED,
    HELD,
    JOINED,
    MADE,
    OF_DICT,
    OF_TEXT,
    OWN,
    READ,
    ROUND,
    SUM,
    Compiler,
    Generation,
    num_literal_chars,
    prepare,
)
from tokenloom.chat.limits import (
    CHECKED_FILTERS,
    WIDE_FIELD,
    Budget,
    LimitError,
    check_fields,
    check_operands,
    checked_arguments,
    comparing_test,
    counted_filter,
    held_filter,
    with_text,
    without_context,
)

_LEFT_OUT = (
    "random",
    "wordwrap",
    "batch",
    "slice",
    "urlize",
    "xmlattr",
    "pprint",
    "filesizeformat",
    "sum",
    "striptags",
)
_HOLDING = ("list", "sort", "groupby", "dictsort")  # filters that put values into a list
_AT_ONCE = ("length", "count", "first", "default", "d", "attr")  # filters that take no time
_COMPARING = ("in", "eq", "equalto", "==", "ne", "!=", "lt", "<", "le", "<=", "gt", ">", "ge", ">=", "upper", "lower")
_SLOW = frozenset(["striptags", "unescape"])  # methods that take a time that grows with the square
_LOOP, _MACRO = jinja2.runtime.LoopContext, jinja2.runtime.Macro
_OF_LOOP = frozenset(name for name in dir(_LOOP) if not name.startswith("_"))
_TEXTS = frozenset([str])
_SIZED, _CHECKED = (str, list, tuple), (str, bytes, int)
_PLAIN = frozenset([bool, int, str])  # types of values that the sandbox need not look at
_MAX_FREE = 1000  # characters of a sum that take no time that matters
_MAX_KNOWN = 10_000  # answers of the sandbox that are remembered
_DIRECTIVE = re.compile(r"%[-_0^#+:\d]*[EO]?(.)", re.DOTALL)  # of strftime, with what it takes of the C library
_OF_JINJA = ("_loop_vars", "_block_vars")  # arguments that Jinja adds to those of a call, for functions that want them


class DateError(TemplateError):
    """A template asks for the present day."""


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with the functions of transformers, and with limits.

    Args:
        budget: what a rendering may take.
        to_json: the filter `tojson`.
        generation: returns what is written for a block `generation`, given its text and the values of the variables of
            the loops and macros around it.
        date: YYYY-MM-DD for `strftime_now`; None if a template must not ask.
    """

    code_generator_class = Compiler
    has_generation = False  # of the template that was compiled
    intercepted_binops = frozenset(["*", "**", "%"])

    def __init__(
        self,
        budget: Budget,
        to_json: Callable[..., str],
        generation: Callable[[str, tuple[Any, ...]], str],
        date: str | None,
    ) -> None:
        extensions = [Generation, jinja2.ext.loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, finalize=with_text, extensions=extensions)
        self.budget, self.written = budget, budget.text
        self._are_safe: dict[tuple[type, str], bool] = {}
        for name in _LEFT_OUT:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {name: self._limited(name, self.filters[name]) for name in CHECKED_FILTERS}
        self.filters |= {name: held_filter(budget, self.filters[name]) for name in _HOLDING}
        for name in set(self.filters).difference(_AT_ONCE):
            self.filters[name] = counted_filter(budget, name, self.filters[name])
        tests: Any = self.tests  # which Jinja declares more narrowly
        tests |= {name: comparing_test(budget, tests[name]) for name in _COMPARING}
        self.filters |= {READ: without_context(budget.read), COMPARED: without_context(budget.compared)}
        self.filters[MADE] = without_context(budget.made)
        self.filters |= {"tojson": to_json, ROUND: budget.take_round, SUM: _adding(budget), BLOCK: generation}
        self.filters[JOINED] = jinja2.pass_context(lambda _, parts: "".join(map(budget.text, parts)))
        self.filters[HELD] = without_context(budget.held)
        self.globals |= {"raise_exception": _raising(budget), "strftime_now": _clock(date)}
        self.globals |= {"dict": _Dict(budget), "namespace": _Namespace}

    def compiled(self, source: str) -> jinja2.Template:
        """Return a template, whose loops, macros and joined texts are counted; one for each sandbox.

        Raises jinja2.TemplateSyntaxError if it is not valid.
        """
        tree = self.parse(source)
        self.budget.num_literal_chars = num_literal_chars(tree)
        self.has_generation = prepare(tree)
        tree.set_environment(self)
        code = self.compile(tree)
        return self.template_class.from_code(self, code, dict(self.globals))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return what Jinja returns, faster for keys of a dictionary, methods of a text and attributes of loops."""
        kind = type(obj)
        if kind is dict and attribute not in OF_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind is str and attribute in OF_TEXT) or (kind is _LOOP and attribute in _OF_LOOP):
            return getattr(obj, attribute)
        if kind is _Namespace and not attribute.startswith("_"):
            value = getattr(obj, attribute, None)
            if type(value) in _PLAIN:
                return value
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return what Jinja's sandbox says, which asks only for the type of an object, once for each type."""
        key = (type(obj), attr)
        if key not in self._are_safe:
            if len(self._are_safe) > _MAX_KNOWN:  # a template may look for what a row says
                self._are_safe.clear()
            self._are_safe[key] = attr not in _SLOW and super().is_safe_attribute(obj, attr, value)
        return self._are_safe[key]

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a filter by the name that `map` is given, which is none of ours: they would add to the budget."""
        if name in OWN:
            raise jinja2.exceptions.TemplateRuntimeError(f"No filter named {name!r}.")
        return super().call_filter(name, *args, **kwargs)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of *, ** or %, if it is not too large."""
        check_operands(self.budget, operator, left, right)
        result = self.binop_table[operator](left, right)
        if isinstance(result, _SIZED):
            self.budget.check(len(result))
        return self.budget.held(self.budget.made(result))

    def call(__self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function, if what it returns is not too large."""
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        given = {key: value for key, value in kwargs.items() if key not in _OF_JINJA}
        __self.budget.read(owner)
        for value in args:
            __self.budget.read(value)
        if isinstance(owner, _CHECKED):
            args = checked_arguments(__self.budget, name, owner, args, given)
            if type(owner) is str and name in OF_TEXT:
                return __self.budget.made(__obj(*args, **given))
        elif name in ("format", "format_map") and hasattr(__obj, "__wrapped__"):
            check_fields(__self.budget, __obj.__wrapped__.__self__, [*args, *given.values()])
        if type(__obj) is not _MACRO or __obj.catch_varargs or __obj.catch_kwargs:
            __self.budget.held([args, given])
        return __self.budget.made(super().call(__context, __obj, *args, **kwargs))

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that checks its arguments first."""
        checked = partial(CHECKED_FILTERS[name], self.budget)
        if not hasattr(function, "jinja_pass_arg"):
            return lambda *args, **kwargs: function(*checked(*args, **kwargs))

        def limited(first: Any, *args: Any, **kwargs: Any) -> Any:
            return function(first, *checked(*args, **kwargs))

        limited.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return limited


def _adding(budget: Budget) -> Callable[..., Any]:
    """Return what the operator `+` makes of its operands; templates add texts all the time."""

    @jinja2.pass_context
    def added(_: jinja2.runtime.Context, parts: Sequence[Any]) -> Any:
        if _TEXTS.issuperset(map(type, parts)):
            text = "".join(parts)
            if len(text) > _MAX_FREE:
                budget.check(len(text))
                budget.made(text)
            return text
        total = parts[0]
        for part in parts[1:]:
            total = total + budget.held(part)
            if isinstance(total, _SIZED):
                budget.check(len(total))
            budget.made(total)
        return total

    return added


class _Dict:
    """The function `dict`, without what else the type has."""

    def __init__(self, budget: Budget) -> None:
        self._held = budget.held

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._held(dict(*args, **kwargs))

    def fromkeys(self, *args: Any, **kwargs: Any) -> Any:
        """Return a dictionary of keys."""
        return self._held(dict.fromkeys(*args, **kwargs))


class _Namespace(jinja2.utils.Namespace):
    """A namespace without attributes that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"  # not what it holds, which may hold it


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no attribute that begins with _, such as {name!r}")


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the escapes of HTML."""
    if isinstance(indent, int) and indent > 100:
        raise LimitError("tojson(indent) is above 100")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raising(budget: Budget) -> Callable[[Any], str]:
    def raise_exception(message: Any) -> str:
        raise TemplateError(budget.text(message))

    return raise_exception


def _clock(date: str | None) -> Callable[[str], str]:
    def strftime_now(pattern: str) -> str:
        if date is None:
            raise DateError("it asks for the present day (strftime_now)")
        if len(pattern) > 1000 or WIDE_FIELD.search(pattern):
            raise LimitError("strftime_now has a width of five digits or more, or a thousand characters")
        for match in _DIRECTIVE.finditer(pattern):
            if match[1] in "szZ":
                raise TemplateError(f"strftime_now({match[0]!r}) depends on the time zone of the machine; remove it")
        return datetime.fromisoformat(date).strftime(pattern)

    return strftime_now
