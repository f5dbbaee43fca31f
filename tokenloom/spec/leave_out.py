"""Patterns of files that a source leaves out, as in a .gitignore file, matched against paths below the source's root.

"*.tmp"     files with such a name in any folder
"drafts"    a file or folder of this name anywhere, with everything in it
"2024/*.gz" in the folder 2024 of the root; "/" at the start or in the middle anchors a pattern to the root
"**/old/**" everything below any folder `old`
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenloom.errors import message_of
from tokenloom.spec.wildcards import PartMatcher, matches_parts

Info = dict[str, Any]
_TOKEN = re.compile(r"(?P<stars>\*+)|(?P<any>\?)|\\(?P<quoted>.)|\[(?P<not>[!^]?)(?P<set>\]?(?:\\.|[^]\\])*)\]|.", re.S)


class _Pattern(NamedTuple):
    """What matches the parts of a path, and whether only what is inside of a match is left out, not the match."""

    parts: list[PartMatcher | None]
    is_inside: bool

    def excludes(self, path: list[str], is_folder: bool) -> bool:
        """Return whether the pattern matches a path or a folder above it."""
        return matches_parts(self.parts, path[:-1] if self.is_inside and not is_folder else path)


class LeaveOut:
    """Decides which files are left out, and counts them by pattern.

    Args:
        patterns: as in a .gitignore file, without exceptions (`!`) and comments.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = [(pattern, _compiled(pattern)) for pattern in patterns]
        self.num_files = Counter(dict.fromkeys(patterns, 0))  # a file counts for each pattern that matches it
        self.num_excluded = 0
        self.num_hidden = 0  # files that wildcards pass over, see wildcards.is_hidden

    def kept(self, found: list[tuple[str, Info]], root: str) -> list[tuple[str, Info]]:
        """Return the (name, fsspec info) pairs that are not left out; patterns do not see the `root` of the names."""
        return [
            (name, info)
            for name, info in found
            if not self.excludes(name.removeprefix(root), is_folder=info["type"] == "directory")
        ]

    def excludes(self, path: str, *, is_folder: bool = False) -> bool:
        """Return whether a path below the source's root is left out."""
        parts = path.split("/")
        matching = [text for text, pattern in self._patterns if pattern.excludes(parts, is_folder)]
        if matching and not is_folder:
            self.num_files.update(matching)
            self.num_excluded += 1
        return bool(matching)


def check_pattern(pattern: str) -> str:
    """Return the pattern; raise ValueError if it can't match any file."""
    if pattern.startswith("!"):
        raise ValueError(
            f"{pattern!r}: exceptions (!) are not supported; write narrower patterns, or \\! for a name that starts "
            "with !"
        )
    if not pattern.strip() or pattern.startswith("#"):
        raise ValueError(
            f"{pattern!r} is blank or a comment and matches no file; write \\# for a name that starts with #"
        )
    try:
        _compiled(pattern)
    except ValueError as error:
        raise ValueError(
            f"{pattern!r} is not a valid pattern: {message_of(error)}; write \\[ for a name that contains a bracket"
        ) from error
    return pattern


def _compiled(pattern: str) -> _Pattern:
    """Return a pattern as git reads it; raises ValueError if it is not valid."""
    text = pattern if pattern.endswith("\\ ") else pattern.rstrip()
    is_inside = text.endswith("/")
    parts = text.removesuffix("/").split("/")
    if not any(parts):
        raise ValueError("it matches no file")
    if len(parts) == 1:
        parts = ["**", *parts]  # in any folder
    if is_inside and parts[-1] == "**":
        parts.append("*")  # any folder
    elif parts[-1] == "**" and any(part not in ("", "**") for part in parts):
        is_inside = True
    matchers = [None if part == "**" else _part_matcher(part) for part in (parts if parts[0] else parts[1:])]
    return _Pattern([*matchers, None], is_inside)


def _part_matcher(part: str) -> PartMatcher:
    """Return what matches a name. Each `*` but the last takes as little as it can, and never more afterwards."""
    pieces = [""]  # the regular expressions before, between and after the stars
    for token in _TOKEN.finditer(part):
        if token["stars"]:
            pieces.append("")
        else:
            pieces[-1] += "." if token["any"] else _set(token) if token["set"] else _character(token)
    first, *middle = pieces
    last = f".*{middle.pop()}" if middle else ""
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in middle) + last, re.DOTALL).fullmatch


def _character(token: re.Match[str]) -> str:
    if token[0] in "[\\":
        raise ValueError("a [ without its ]" if token[0] == "[" else "nothing follows its last \\")
    return re.escape(token["quoted"] or token[0])


def _set(token: re.Match[str]) -> str:
    """Return the regular expression of a set such as [a-z]; raises ValueError if a range is reversed."""
    if "[:" in token["set"]:
        raise ValueError(f"classes such as [:alpha:] are not supported in {token[0]}, write ranges such as a-z")
    items = re.findall(r"\\.|[^\\]", token["set"], re.DOTALL)
    inner = "".join("-" if item == "-" else re.escape(item[-1]) for item in items)
    try:
        return re.compile(f"[{'^' if token['not'] else ''}{inner}]").pattern
    except re.error as error:
        raise ValueError(f"{token[0]}: {error.msg}; write the smaller end of a range first, such as a-z") from error
