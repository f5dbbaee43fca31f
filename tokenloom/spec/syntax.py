"""The texts of a spec that have a syntax: names, paths with wildcards, and row filters. Workers import it.

Wildcards: `*`, `?` and `[...]` match within one part of a path; `**`, as a whole part, matches any number of parts. A
wildcard in brackets is an ordinary character: "exp[[]1]" is the name "exp[1]".

Row filters are comparisons on columns, such as `language == "en" and score >= 0.5`, parsed to a small tree. A row is
kept if the whole expression is true. A comparison with null, or with a column that the row lacks, is false.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

NAME_PATTERN = r"^[a-z][a-z0-9._-]{0,63}$"
MODEL_NAME_PATTERN = r"^(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$"
LAYOUTS = ("messages", "sharegpt", "alpaca", "prompt_completion")  # chat/layouts.py reads them
REMOVE = "remove"  # `as` of lists of documents that are dropped
WHOLE_ROW = "."  # the `text` or `messages` of a source whose rows are texts or conversations themselves
_WILDCARD = re.compile(r"\[([*?[])\]|[*?[]")
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Scalar = str | int | float | bool
FILTER_RULES = 2  # part of the names of spills and versions of sources with a filter: raise it if other rows are kept
_OPERATORS: dict[type[ast.cmpop], str] = dict(
    zip((ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE), COMPARE, strict=True)
)
_HELP = (
    'write comparisons of a column with a value, joined by and / or: language == "en" and score >= 0.5, '
    'label in [1, 2], meta.source != "web"'
)


def escaped(path: str) -> str:
    """Return the pattern that matches a path alone."""
    return re.sub(r"([*?[])", r"[\1]", path)


def first_wildcard(pattern: str) -> int | None:
    """Return the position of the first wildcard, None if there is none; escaped ones are skipped."""
    return next((found.start() for found in _WILDCARD.finditer(pattern) if not found[1]), None)


def literal(pattern: str) -> str:
    """Return the path that a pattern without wildcards matches."""
    return _WILDCARD.sub(lambda found: found[1] or found[0], pattern)


def root_of(pattern: str) -> str:
    """Return the root of a pattern, which has no protocol: up to the last "/" before the first wildcard."""
    return literal(pattern[: pattern.rfind("/", 0, first_wildcard(pattern)) + 1])


def is_table(path: str) -> bool:
    """Return whether files of marks are tables, parquet or JSON lines, not lists of keys."""
    return re.search(r"\.(parquet|jsonl?)(\.\w+)?$", path) is not None


def check_pattern(pattern: str) -> str:
    """Return the pattern; raise ValueError if it begins with !, # or /, or ends with /."""
    if not pattern.strip() or pattern.startswith(("!", "#", "/")) or pattern.endswith("/"):
        raise ValueError(
            f'{pattern!r} is not a pattern of files; write "*.tmp" for names, "drafts/*" for a folder, [!] or [#] for '
            "a name that begins so"
        )
    return pattern


@dataclass(frozen=True)
class Comparison:
    """`column operator value`; `column` may be dotted, the operator is one of == != < <= > >=."""

    column: str
    operator: str
    value: Scalar


@dataclass(frozen=True, eq=False)  # hashed as an object: the values may be many
class Members:
    """`column in [...]`, or `not in`, with many values that are all text, or all numbers, True or False."""

    column: str
    is_in: bool
    values: tuple[Scalar, ...]

    @cached_property
    def value_set(self) -> frozenset[Scalar]:
        """The values."""
        return frozenset(self.values)


@dataclass(frozen=True)
class Junction:
    """Several expressions: all of them (`is_all`) or at least one must be true."""

    is_all: bool
    parts: tuple[Filter, ...]


Filter = Comparison | Members | Junction
_FEW_VALUES = 16  # the values of a list of so many are compared one by one


@lru_cache(maxsize=4)  # each partition asks for it, and a list may have 200,000 values
def parse_filter(text: str) -> Filter:
    """Return the tree of a filter; raise ValueError if the syntax is not supported.

    Example: 'a.b == "x" or n in [1, 2]' -> Junction(False, (Comparison("a.b", "==", "x"),
    Junction(False, (Comparison("n", "==", 1), Comparison("n", "==", 2)))))
    """
    try:
        return _tree(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a comparison: {getattr(error, 'msg', error)}; {_HELP}") from error


def comparisons_of(tree: Filter) -> Iterator[Comparison | Members]:
    """Yield the comparisons of a filter in the order written."""
    if isinstance(tree, Junction):
        for part in tree.parts:
            yield from comparisons_of(part)
    else:
        yield tree


def holds(tree: Filter, compare: Callable[[Comparison | Members], bool]) -> bool:
    """Return whether a filter is true; `compare` is called for every comparison, without short circuit."""
    if not isinstance(tree, Junction):
        return compare(tree)
    parts = [holds(part, compare) for part in tree.parts]
    return all(parts) if tree.is_all else any(parts)


def decided(tree: Filter, decide: Callable[[Comparison | Members], bool | None]) -> Filter:
    """Return a filter whose comparisons that `decide` knows are junctions of nothing: all of it, or any."""
    if isinstance(tree, Junction):
        return Junction(tree.is_all, tuple(decided(part, decide) for part in tree.parts))
    known = decide(tree)
    return tree if known is None else Junction(known, ())


def columns_of(tree: Filter) -> list[str]:
    """Return the columns that a filter reads, each once, in the order written."""
    return list(dict.fromkeys(comparison.column for comparison in comparisons_of(tree)))


def _tree(node: ast.expr) -> Filter:
    if isinstance(node, ast.BoolOp):
        return Junction(isinstance(node.op, ast.And), tuple(map(_tree, node.values)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _negated(_tree(node.operand))
    if isinstance(node, ast.Name | ast.Attribute):
        return Comparison(_column(node), "==", True)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        column, operator, value = _column(node.left), node.ops[0], node.comparators[0]
        if type(operator) in _OPERATORS:
            return Comparison(column, _OPERATORS[type(operator)], _scalar(value))
        if isinstance(operator, ast.In | ast.NotIn) and isinstance(value, ast.List | ast.Tuple) and value.elts:
            return _membership(column, isinstance(operator, ast.In), [_scalar(item) for item in value.elts])
    raise ValueError(f"{ast.unparse(node)!r} is not a comparison; {_HELP}")


_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def _negated(tree: Filter) -> Filter:
    """Return the filter of the rows that are not null and that a filter leaves out."""
    if isinstance(tree, Junction):
        return Junction(not tree.is_all, tuple(map(_negated, tree.parts)))
    if isinstance(tree, Members):
        return Members(tree.column, not tree.is_in, tree.values)
    return Comparison(tree.column, _OPPOSITE[tree.operator], tree.value)


def _membership(column: str, is_in: bool, values: list[Scalar]) -> Filter:
    if len(values) <= _FEW_VALUES:
        return Junction(not is_in, tuple(Comparison(column, "==" if is_in else "!=", value) for value in values))
    kinds: dict[type, dict[Scalar, None]] = {}
    for value in values:
        kinds.setdefault(str if isinstance(value, str) else float, {})[value] = None
    return Junction(not is_in, tuple(Members(column, is_in, tuple(found)) for found in kinds.values()))


def _column(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_column(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise ValueError(f"{ast.unparse(node)!r} is not a column; {_HELP}")


def _scalar(node: ast.expr) -> Scalar:
    if isinstance(node, ast.Name) and node.id in ("true", "false"):
        return node.id == "true"
    try:
        value = ast.literal_eval(node)
        if isinstance(value, str):
            value.encode()  # half a surrogate pair is not valid text
        if isinstance(value, str | float) or (isinstance(value, int) and -(2**63) <= value < 2**64):
            return value
    except (ValueError, TypeError):
        pass
    raise ValueError(f"{ast.unparse(node)!r} is not a text, a number of 64 bits, True or False; {_HELP}")
