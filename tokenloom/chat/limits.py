"""What a chat template can take: rounds of loops, characters, and what its operators, methods and filters make.

These are counts, not times, so that whether a row can be rendered depends on the row alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2 import TemplateError, Undefined, pass_context
from jinja2.runtime import Context

MAX_ROUNDS = 200_000  # of loops and calls of macros, and a thousand more for each message
MAX_PARTS = 1_000_000  # of the lists and objects that a template makes, and a hundred thousand more for each message
MAX_ITEMS = 16_000_000  # of a text or list that a template makes, and in all of what it writes
_MAX_WORK = 1_000_000_000  # of what its operations read and make, and more for the characters of the conversation
_MADE = 16  # of work for a character that is made, which takes memory
_ITEM = 64  # of work for an item that is read or made
_MAX_BITS = 100_000  # of an integer
_MAX_WIDTH = 10_000  # of a field, an indentation, or digits after the point
WIDE_FIELD = re.compile(r"\d{5}|\*|\{[^{}]*\{")  # five digits, or a width that is an argument
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict)
_HOLDERS: tuple[Any, ...] = (*_CONTAINERS, *map(type, ({}.keys(), {}.values(), {}.items())))
_SIZED: tuple[Any, ...] = (*_HOLDERS, range)
_TEXTS = (str, bytes)
_WRITING = frozenset(
    ["string", "upper", "lower", "trim", "capitalize", "title", "center", "indent", "replace", "urlencode"]
)
_WRITING |= {"truncate", "wordcount", "escape", "e", "forceescape", "safe"}  # filters that make texts of lists
_SLOW = {"title", "wordcount", "map", "select", "selectattr", "reject", "rejectattr", "sort", "min", "max", "urlencode"}
_SLOWLY = 256  # of work for a character or an item that these filters read
_RESIZING = {"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes"}


_VALUES = (str, int, float, type(None), Undefined)


class LimitError(TemplateError):
    """A template exceeds a limit."""


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


class Budget:
    """What a rendering may still take.

    Attributes:
        rounds: of loops, and calls of macros.
        items: characters that it writes.
        parts: of the lists and objects that it makes, with those in them.
        work: characters and items that its operations read and make; it bounds the time and the memory that they take.
        num_literal_chars: the characters that the template itself has.
    """

    rounds = items = parts = num_literal_chars = 0
    _max_rounds = _max_items = _max_parts = 0
    work = _MAX_WORK  # also of what is constant, when it is compiled

    def start(self, num_messages: int, num_chars: int) -> None:
        """Begin the rendering of a conversation of so many messages and characters."""
        self.rounds = self._max_rounds = MAX_ROUNDS + 1000 * num_messages
        self.parts = self._max_parts = MAX_PARTS + 100_000 * num_messages
        self.work = _MAX_WORK + 100_000 * num_messages + (256 + min(16 * num_messages, 1024)) * num_chars
        self.items = self._max_items = MAX_ITEMS + 4 * num_chars + 4 * num_messages * self.num_literal_chars

    @pass_context
    def take_round(self, _: Context, num_chars: int) -> None:
        """Count a round of a loop that writes at least so many characters."""
        self.rounds -= 1
        self.items -= num_chars
        if self.rounds < 0:
            raise LimitError(f"it takes more than {self._max_rounds:,} rounds of loops")
        self._check_written()

    def check(self, num_items: int) -> None:
        """Raise LimitError if a text or list would have too many items."""
        if num_items > MAX_ITEMS and num_items > self.items:
            raise LimitError(f"it makes a text or a list of {num_items:,} items; the limit is {MAX_ITEMS:,}")

    def take_work(self, amount: int) -> None:
        """Count work."""
        self.work -= amount
        if self.work < 0:
            raise LimitError("its operations read and make too much text, or too many items")

    def read(self, value: Any) -> Any:
        """Return a value that an operation reads, counted without what its items hold."""
        if isinstance(value, _TEXTS):
            self.take_work(len(value))
        elif isinstance(value, _SIZED):
            self.take_work(_ITEM * len(value))
        return value

    def compared(self, value: Any) -> Any:
        """Return a value that is compared or searched, counted with all that it holds."""
        if isinstance(value, _CONTAINERS):
            self.take_work(_MADE * _size(value, self.work))
        return self.read(value)

    def made(self, value: Any) -> Any:
        """Return a value that an operation makes, counted; of an iterator, when its items are taken."""
        if isinstance(value, _TEXTS):
            self.take_work(_MADE * len(value))
        elif isinstance(value, _CONTAINERS):
            self.take_work(_ITEM * len(value))
        elif isinstance(value, int):
            if value.bit_length() > _MAX_BITS:
                raise LimitError("it makes an integer that is too large")
        elif isinstance(value, Iterator):
            return self._each(value)
        return value

    def _each(self, values: Iterator[Any]) -> Iterator[Any]:
        for value in values:
            self.take_work(_ITEM)
            yield value

    def text(self, value: Any) -> str:
        """Return the text of a value that is written, counted."""
        self.written(value)
        return value if type(value) is str else str(value)

    def written(self, value: Any) -> None:
        """Count the characters of a value that is written."""
        self.items -= len(value) if type(value) is str else _size(value, self.items)
        if self.items < 0:
            self._check_written()

    def held(self, value: Any) -> Any:
        """Return a value that a template makes; if it holds others, its parts are counted, and theirs."""
        pending = [value]
        while pending:
            one = pending.pop()
            if isinstance(one, _HOLDERS):
                self.parts -= len(one)
                if self.parts < 0:
                    raise LimitError(f"it makes lists and objects of more than {self._max_parts:,} parts, with theirs")
                pending += [*one, *one.values()] if isinstance(one, dict) else one
        return value

    def _check_written(self) -> None:
        if self.items < 0:
            raise LimitError(f"it writes more than {self._max_items:,} characters")


def _size(value: Any, limit: int) -> int:
    """Return about how many characters a value has as text; it may stop above `limit`. See with_text."""
    if not isinstance(value, _CONTAINERS):
        return len(value) if isinstance(with_text(value), str) else 1
    total, pending = 0, [value]
    while pending and total <= limit:
        one = pending.pop()
        parts = [*one, *one.values()] if isinstance(one, dict) else one
        total += 2 * len(parts)
        for part in parts:
            if isinstance(part, str):
                total += len(part)
            elif isinstance(part, _CONTAINERS):
                pending.append(part)
            else:
                with_text(part)
                total += 1
    return total


def check_operands(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Raise LimitError if the result of *, ** or % would be too large."""
    if operator == "%":
        if isinstance(left, str | bytes):
            values = right.values() if isinstance(right, dict) else right if isinstance(right, tuple) else (right,)
            check_fields(budget, left, values)
        return
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(0, right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise LimitError("it makes an integer that is too large")
    sequence, times = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(sequence, str | bytes | list | tuple) and isinstance(times, int):
        budget.check(len(sequence) * times)


def check_fields(budget: Budget, pattern: str | bytes, values: Iterable[Any]) -> None:
    """Raise LimitError if a formatted text could be too large."""
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    if WIDE_FIELD.search(text):
        raise LimitError("it formats with a width of five digits or more, or one that is an argument")
    longest = max((_size(value, MAX_ITEMS) for value in values), default=0)
    budget.check(len(text) + _MAX_WIDTH + (text.count("%") + text.count("{")) * longest)


def checked_arguments(
    budget: Budget, name: str, owner: str | bytes | int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments of a method; raise LimitError if what it returns would be too large."""
    given = [*args, *kwargs.values()]
    if name.startswith("r") and given and isinstance(given[0], _TEXTS):  # searching from the right is slow
        budget.take_work(len(owner) * len(given[0]) // 16)  # type: ignore[arg-type]
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
    check_fields(budget, str(value), [*args, *kwargs.values()])
    return (value, *args)


def _rounded(budget: Budget, value: Any, precision: int = 0, method: str = "common") -> tuple[Any, ...]:
    if abs(precision) > 300:
        raise LimitError("it rounds to more than 300 digits")
    return value, precision, method


CHECKED_FILTERS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "join": _join,
    "replace": _replace,
    "indent": _indent,
    "center": _center,
    "format": _format,
    "round": _rounded,
}


def counted_filter(budget: Budget, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that counts what it reads and makes; functools keeps what Jinja passes to it."""
    place = 1 if hasattr(function, "jinja_pass_arg") else 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        for value in args[place:]:
            budget.read(value)
        if name in _SLOW and len(args) > place and isinstance(args[place], (*_TEXTS, *_SIZED)):
            budget.take_work(_SLOWLY * len(args[place]))
        if name in _WRITING and len(args) > place:
            budget.check(_size(args[place], budget.items))
        return budget.made(function(*args, **kwargs))

    return wraps(function)(counted)


def held_filter(budget: Budget, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter whose result is counted with all that it holds."""
    return wraps(function)(lambda *args, **kwargs: budget.held(function(*args, **kwargs)))


def comparing_test(budget: Budget, test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test that counts what it compares."""
    return lambda *args: test(*map(budget.compared, args))


def without_context(function: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a filter that is never called when a template is compiled."""
    return pass_context(lambda _, value: function(value))
