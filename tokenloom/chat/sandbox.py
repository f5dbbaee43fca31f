"""The environment in which a chat template runs: what transformers gives it, and limits on what it can take.

What is left out of Jinja: filters that no known template uses and that could exceed the limits, and those that are
random.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor
from jinja2 import TemplateError

from tokenloom.chat.limits import (
    CHECKED_FILTERS,
    MAX_ITEMS,
    WIDE_FIELD,
    Budget,
    LimitError,
    check_fields,
    check_operands,
    checked_arguments,
)

_LEFT_OUT = ("random", "wordwrap", "batch", "slice", "urlize", "xmlattr", "pprint", "filesizeformat", "sum")
_OF_DICT = frozenset(dir(dict))
_OF_TEXT = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
_LOOP = jinja2.runtime.LoopContext
_OF_LOOP = frozenset(name for name in dir(_LOOP) if not name.startswith("_"))
_TEXTS = frozenset([str])
_SIZED, _CHECKED = (str, list, tuple), (str, bytes, int)
_PLAIN = frozenset([bool, int, str])  # types of values that the sandbox need not look at
_MAX_KNOWN = 10_000  # answers of the sandbox that are remembered
_OF_JINJA = ("_loop_vars", "_block_vars")  # arguments that Jinja adds to those of a call, for functions that want them


class DateError(TemplateError):
    """A template asks for the present day."""


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with the functions of transformers, and with limits.

    Args:
        budget: what a rendering may take.
        to_json: the filter `tojson`.
        generation: returns what is written for a block `generation`, given its text and the variables of the loops and
            macros around it.
        date: YYYY-MM-DD for `strftime_now`; None if a template must not ask.
    """

    has_generation = False  # of the template that was compiled
    intercepted_binops = frozenset(["*", "**", "%"])

    def __init__(
        self,
        budget: Budget,
        to_json: Callable[..., str],
        generation: Callable[[str, Sequence[Any]], str],
        date: str | None,
    ) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
            finalize=budget.written,
        )
        self.budget, self.around_generation = budget, generation
        self._are_safe: dict[tuple[type, str], bool] = {}
        for name in _LEFT_OUT:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {name: self._limited(name, self.filters[name]) for name in CHECKED_FILTERS}
        self.filters |= {"tojson": to_json, "_round": jinja2.pass_context(lambda _, chars: budget.take_round(chars))}
        self.filters["_added"] = _adding(budget)
        self.filters["_joined"] = jinja2.pass_context(lambda _, parts: self._joined(parts))
        self.globals |= {"raise_exception": _raise, "strftime_now": _clock(date)}
        self.globals |= {"dict": _Dict(), "namespace": _Namespace}

    def compiled(self, source: str) -> jinja2.Template:
        """Return a template, whose loops, macros and joined texts are counted; one for each sandbox.

        Raises jinja2.TemplateSyntaxError if it is not valid.
        """
        tree = self.parse(source)
        self.budget.num_literal_chars = _num_literal_chars(tree)
        counted: tuple[Any, ...] = (jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock)
        for node in tree.find_all(counted):
            count = jinja2.nodes.Const(_num_literal_chars(node))
            node.body.insert(0, jinja2.nodes.ExprStmt(_filter(count, "_round")))
        self.has_generation = any(map(_is_generation, tree.find_all(jinja2.nodes.CallBlock)))
        _give_variables(tree, ())
        _Sums().visit(tree)
        tree.set_environment(self)
        code = self.compile(tree)
        return self.template_class.from_code(self, code, dict(self.globals))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return what Jinja returns, faster for keys of a dictionary, methods of a text and attributes of loops."""
        kind = type(obj)
        if kind is dict and attribute not in _OF_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind is str and attribute in _OF_TEXT) or (kind is _LOOP and attribute in _OF_LOOP):
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
            self._are_safe[key] = super().is_safe_attribute(obj, attr, value)
        return self._are_safe[key]

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of *, ** or %, if it is not too large."""
        check_operands(self.budget, operator, left, right)
        result = self.binop_table[operator](left, right)
        if isinstance(result, _SIZED):
            self.budget.check(len(result))
        return result

    def call(__self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function, if what it returns is not too large."""
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        given = {key: value for key, value in kwargs.items() if key not in _OF_JINJA}
        if isinstance(owner, _CHECKED):
            args = checked_arguments(__self.budget, name, owner, args, given)
            if type(owner) is str and name in _OF_TEXT:
                return __obj(*args, **given)
        elif type(owner) is _Generation:
            return __obj(*args, **given)
        elif name in ("format", "format_map") and hasattr(__obj, "__wrapped__"):
            check_fields(__self.budget, __obj.__wrapped__.__self__, [*args, *given.values()])
        return super().call(__context, __obj, *args, **kwargs)

    def _joined(self, parts: Iterable[Any]) -> str:
        """Return what the operator `~` makes of its operands."""
        texts = [str(self.budget.written(part)) for part in parts]
        return "".join(texts)

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
            if len(text) > MAX_ITEMS:
                budget.check(len(text))
            return text
        total = parts[0]
        for part in parts[1:]:
            total = total + part
            if isinstance(total, _SIZED):
                budget.check(len(total))
        return total

    return added


class _Generation(jinja2.ext.Extension):
    """The tag `{% generation %} ... {% endgeneration %}` around what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Return a call of _around with the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_around"), [], [], body).set_lineno(line)

    def _around(self, *variables: Any, caller: Callable[[], str]) -> str:
        around: Callable[..., str] = self.environment.around_generation  # type: ignore[attr-defined]
        return around(caller(), variables)


def _give_variables(node: jinja2.nodes.Node, names: tuple[str, ...]) -> None:
    """Give the blocks of `generation` the variables of the loops and macros around them, the innermost last."""
    if isinstance(node, jinja2.nodes.For):
        names += tuple(name.name for name in _all_nodes(node.target, jinja2.nodes.Name))
    elif isinstance(node, jinja2.nodes.Macro):
        names += tuple(name.name for name in node.args)
    elif isinstance(node, jinja2.nodes.CallBlock) and _is_generation(node):
        node.call.args = [jinja2.nodes.Name(name, "load") for name in names]
    for child in node.iter_child_nodes():
        _give_variables(child, names)


def _is_generation(block: jinja2.nodes.CallBlock) -> bool:
    return isinstance(block.call.node, jinja2.nodes.ExtensionAttribute)


def _all_nodes(node: jinja2.nodes.Node, kind: type[Any]) -> list[Any]:
    """Return a node and those in it that are of a kind."""
    return [*([node] if isinstance(node, kind) else []), *node.find_all(kind)]


class _Sums(jinja2.visitor.NodeTransformer):
    """Makes `a + b + c` and `a ~ b` filters of ours, as an environment can't intercept the one, or only slowly."""

    def visit_Add(self, node: jinja2.nodes.Add, *args: Any, **kwargs: Any) -> jinja2.nodes.Node:  # noqa: N802
        """Return a filter of all operands of a sum."""
        operands: list[jinja2.nodes.Expr] = []
        left: jinja2.nodes.Expr = node
        while isinstance(left, jinja2.nodes.Add):
            operands.insert(0, left.right)
            left = left.left
        return _filter(jinja2.nodes.List([self.visit(one, *args, **kwargs) for one in [left, *operands]]), "_added")

    def visit_Concat(self, node: jinja2.nodes.Concat, *args: Any, **kwargs: Any) -> jinja2.nodes.Node:  # noqa: N802
        """Return a filter of the operands."""
        self.generic_visit(node, *args, **kwargs)
        return _filter(jinja2.nodes.List(node.nodes), "_joined")


def _filter(value: jinja2.nodes.Expr, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(value, name, [], [], None, None)


def _num_literal_chars(node: jinja2.nodes.Node) -> int:
    """Return how many characters of the template's own a round of a loop can write."""
    texts = [data.data for data in node.find_all(jinja2.nodes.TemplateData)]
    texts += [const.value for const in node.find_all(jinja2.nodes.Const) if isinstance(const.value, str)]
    return sum(map(len, texts))


class _Dict:
    """The function `dict`, without what else the type has."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """Return a dictionary of keys."""
        return dict.fromkeys(*args, **kwargs)


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


def _raise(message: Any) -> str:
    raise TemplateError(str(message))


def _clock(date: str | None) -> Callable[[str], str]:
    def strftime_now(pattern: str) -> str:
        if date is None:
            raise DateError("it asks for the present day (strftime_now)")
        if WIDE_FIELD.search(pattern):
            raise LimitError("strftime_now has a width of five digits or more")
        return datetime.fromisoformat(date).strftime(pattern)

    return strftime_now
