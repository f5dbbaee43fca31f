"""The environment in which a chat template runs: what transformers gives it, and limits on what it can take.

The limits are counts, not times, so that whether a row can be rendered depends on the row alone. A template has so many
rounds of loops and calls of macros, and makes texts and lists of so many items. What is left out of Jinja: filters that
no known template uses and that could exceed these limits, and those that are random.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
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

MAX_ROUNDS = 1_000_000  # of loops and calls of macros, and a thousand more for each message
MAX_ITEMS = 16_000_000  # of a text or list that a template makes, and in all of what it writes
_MAX_BITS = 100_000  # of an integer
_MAX_WIDTH = 10_000  # of a field, an indentation, or digits after the point
_LEFT_OUT = ("random", "wordwrap", "batch", "slice", "urlize", "xmlattr", "pprint", "filesizeformat", "sum")
_DICT_ATTRIBUTES = frozenset(dir(dict))
_STR_METHODS = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
_PLAIN = frozenset([bool, int, str])
_OF_JINJA = ("_loop_vars", "_block_vars")  # arguments that Jinja adds to those of a call, for functions that want them
_WIDE_FIELD = re.compile(r"\d{5}|\*|\{[^{}]*\{")  # five digits, or a width that is an argument
_RESIZING = {"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes"}


class LimitError(TemplateError):
    """A template exceeds a limit."""


class DateError(TemplateError):
    """A template asks for the present day."""


class Budget:
    """What a rendering may still take.

    Attributes:
        rounds: of loops, and calls of macros.
        items: characters that it writes.
        num_literal_chars: the characters that the template itself has.
    """

    rounds = items = num_literal_chars = 0

    def start(self, num_messages: int, num_chars: int) -> None:
        """Begin the rendering of a conversation of so many messages and characters."""
        self.rounds = MAX_ROUNDS + 1000 * num_messages
        self.items = MAX_ITEMS + 4 * num_chars + 4 * num_messages * self.num_literal_chars

    def take_round(self, num_chars: int) -> None:
        """Count a round of a loop that writes at least so many characters."""
        self.rounds -= 1
        self.items -= num_chars
        if self.rounds < 0 or self.items < 0:
            raise LimitError(f"it takes more than {MAX_ROUNDS:,} rounds of loops or writes too much")

    def check(self, num_items: int) -> None:
        """Raise LimitError if a text or list would have too many items."""
        if num_items > MAX_ITEMS and num_items > self.items:
            raise LimitError(f"it makes a text or a list of {num_items:,} items; the limit is {MAX_ITEMS:,}")

    def written(self, value: Any) -> Any:
        """Return a value that is written, counted."""
        self.items -= len(value) if type(value) is str else _size(value, self.items)
        if self.items < 0:
            raise LimitError(f"it writes more than {MAX_ITEMS:,} characters")
        return value


def _size(value: Any, limit: int) -> int:
    """Return about how many characters a value has as text; it may stop above `limit`."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if not isinstance(value, list | tuple):
        return 1
    total = 0
    for part in value:
        total += 2 + _size(part, limit - total)
        if total > limit:
            break
    return total


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with the functions of transformers, and with limits.

    Args:
        budget: what a rendering may take.
        to_json: the filter `tojson`.
        generation: returns what is written for a block `generation`, given its text and the variables of the loops and
            macros around it.
        date: YYYY-MM-DD for `strftime_now`; None if a template must not ask.
    """

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
        self.filters |= {name: self._limited(name, self.filters[name]) for name in _FILTERS}
        self.filters |= {"tojson": to_json, "_round": jinja2.pass_context(lambda _, chars: budget.take_round(chars))}
        self.filters["_added"] = jinja2.pass_context(lambda _, parts: self._added(parts))
        self.filters["_joined"] = jinja2.pass_context(lambda _, parts: self._joined(parts))
        self.globals |= {"raise_exception": _raise, "strftime_now": _clock(date)}
        self.globals |= {"dict": _Dict(), "namespace": _Namespace}

    def compiled(self, source: str) -> jinja2.Template:
        """Return a template, whose loops, macros and joined texts are counted.

        Raises jinja2.TemplateSyntaxError if it is not valid.
        """
        tree = self.parse(source)
        self.budget.num_literal_chars = _num_literal_chars(tree)
        counted: tuple[Any, ...] = (jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock)
        for node in tree.find_all(counted):
            count = jinja2.nodes.Const(_num_literal_chars(node))
            node.body.insert(0, jinja2.nodes.ExprStmt(_filter(count, "_round")))
        _give_variables(tree, ())
        _Sums().visit(tree)
        tree.set_environment(self)
        code = self.compile(tree)
        return self.template_class.from_code(self, code, dict(self.globals))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return what Jinja returns, faster for keys of a dictionary, methods of a text and values of loops."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind is str and attribute in _STR_METHODS:
            return getattr(obj, attribute)
        if (kind is jinja2.runtime.LoopContext or kind is _Namespace) and not attribute.startswith("_"):
            value = getattr(obj, attribute, None)
            if type(value) in _PLAIN:
                return value
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return what Jinja's sandbox says, which asks only for the type of an object, once for each type."""
        key = (type(obj), attr)
        if key not in self._are_safe:
            self._are_safe[key] = super().is_safe_attribute(obj, attr, value)
        return self._are_safe[key]

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of *, ** or %, if it is not too large."""
        _check_operands(self.budget, operator, left, right)
        result = self.binop_table[operator](left, right)
        if isinstance(result, str | list | tuple):
            self.budget.check(len(result))
        return result

    def call(__self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function, if what it returns is not too large."""
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        given = {key: value for key, value in kwargs.items() if key not in _OF_JINJA}
        if isinstance(owner, str | bytes | int):
            args = _checked_arguments(__self.budget, name, owner, args, given)
            if type(owner) is str and name in _STR_METHODS:
                return __obj(*args, **given)
        elif name in ("format", "format_map") and hasattr(__obj, "__wrapped__"):
            _check_fields(__self.budget, __obj.__wrapped__.__self__, [*args, *given.values()])
        return super().call(__context, __obj, *args, **kwargs)

    def _added(self, parts: Sequence[Any]) -> Any:
        """Return what the operator `+` makes of its operands."""
        if set(map(type, parts)) == {str}:
            text = "".join(parts)
            self.budget.check(len(text))
            return text
        total = parts[0]
        for part in parts[1:]:
            total = total + part
            if isinstance(total, str | list | tuple):
                self.budget.check(len(total))
        return total

    def _joined(self, parts: Iterable[Any]) -> str:
        """Return what the operator `~` makes of its operands."""
        texts = [str(self.budget.written(part)) for part in parts]
        return "".join(texts)

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that checks its arguments first."""

        def limited(first: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            arguments = _FILTERS[name](self.budget, value, *args, **kwargs)
            return function(first, *arguments) if takes_first else function(*arguments)

        takes_first = hasattr(function, "jinja_pass_arg")
        if not takes_first:
            return lambda value, *args, **kwargs: function(*_FILTERS[name](self.budget, value, *args, **kwargs))
        limited.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return limited


def _check_operands(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Raise LimitError if the result of *, ** or % would be too large."""
    if operator == "%":
        if isinstance(left, str | bytes):
            values = right.values() if isinstance(right, dict) else right if isinstance(right, tuple) else (right,)
            _check_fields(budget, left, values)
        return
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(0, right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise LimitError("it makes an integer that is too large")
    sequence, times = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(sequence, str | bytes | list | tuple) and isinstance(times, int):
        budget.check(len(sequence) * times)


def _check_fields(budget: Budget, pattern: str | bytes, values: Iterable[Any]) -> None:
    """Raise LimitError if a formatted text could be too large."""
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    if _WIDE_FIELD.search(text):
        raise LimitError("it formats with a width of five digits or more, or one that is an argument")
    longest = max((_size(value, MAX_ITEMS) for value in values), default=0)
    budget.check(len(text) + _MAX_WIDTH + (text.count("%") + text.count("{")) * longest)


def _checked_arguments(
    budget: Budget, name: str, owner: str | bytes | int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments of a method; raise LimitError if what it returns would be too large."""
    given = [*args, *kwargs.values()]
    if name in _RESIZING:
        for size in given:
            if isinstance(size, int) and size > _MAX_WIDTH:
                raise LimitError(f"{name}({size}) is above {_MAX_WIDTH:,}")
    elif name == "replace" and len(given) > 1:
        budget.check(len(owner) + owner.count(given[0]) * len(given[1]))  # type: ignore[arg-type, union-attr]
    elif name == "join" and args:
        args = (list(args[0]),)
        budget.check(_size(args[0], budget.items) + len(owner) * len(args[0]))  # type: ignore[arg-type]
    elif name == "translate" and isinstance(args[0], dict):
        longest = max((_size(value, MAX_ITEMS) for value in args[0].values()), default=0)
        budget.check(len(owner) * longest)  # type: ignore[arg-type]
    return args


def _join(budget: Budget, value: Any, d: Any = "", attribute: Any = None) -> tuple[Any, ...]:
    items = list(value)
    budget.check(_size(items, budget.items) + len(str(d)) * len(items))
    return items, d, attribute


def _replace(budget: Budget, s: Any, old: Any, new: Any, count: Any = None) -> tuple[Any, ...]:
    text = str(s)
    budget.check(len(text) + text.count(str(old)) * len(str(new)))
    return s, old, new, count


def _indent(budget: Budget, s: Any, width: Any = 4, first: bool = False, blank: bool = False) -> tuple[Any, ...]:
    size = width if isinstance(width, int) else len(width)
    budget.check(len(str(s)) + (str(s).count("\n") + 1) * size)
    return s, width, first, blank


def _center(budget: Budget, value: Any, width: int = 80) -> tuple[Any, ...]:
    budget.check(width)
    return value, width


def _format(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    _check_fields(budget, str(value), [*args, *kwargs.values()])
    return (value, *args)


def _rounded(budget: Budget, value: Any, precision: int = 0, method: str = "common") -> tuple[Any, ...]:
    if abs(precision) > 300:
        raise LimitError("it rounds to more than 300 digits")
    return value, precision, method


_FILTERS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "join": _join,
    "replace": _replace,
    "indent": _indent,
    "center": _center,
    "format": _format,
    "round": _rounded,
}


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
    elif isinstance(node, jinja2.nodes.CallBlock) and isinstance(node.call.node, jinja2.nodes.ExtensionAttribute):
        node.call.args = [jinja2.nodes.Name(name, "load") for name in names]
    for child in node.iter_child_nodes():
        _give_variables(child, names)


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
        if _WIDE_FIELD.search(pattern):
            raise LimitError("strftime_now has a width of five digits or more")
        return datetime.fromisoformat(date).strftime(pattern)

    return strftime_now
