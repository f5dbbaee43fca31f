"""Patterns of files: wildcards in paths, and those that a source leaves out.

`*`, `?` and `[...]` match within one part of a path; `**`, as a whole part, matches any number of parts. A wildcard in
brackets is an ordinary character: "exp[[]1]" is the name "exp[1]".

Patterns of files to leave out are compared with the names of files and with paths below the source's root:

"*.tmp"      files with such a name in any folder
"drafts/*"   everything below the folder drafts of the root, as `*` also matches "/"
"*/old/*"    everything below folders `old` of other folders
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase, translate
from typing import Any

_WILDCARD = re.compile(r"\[([*?[])\]|[*?[]")
PartMatcher = Callable[[str], object]
Info = dict[str, Any]


def _nothing(_part: str) -> bool:
    return False


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


def is_hidden(name: str) -> bool:
    """Return whether wildcards pass over a name, as those of pyarrow, Hugging Face and Spark do: "_SUCCESS", ".crc"."""
    return name.startswith(("_", "."))


def passes_over(pattern: str, path: str) -> bool:
    """Return whether a path matches a pattern only if wildcards match hidden names; both are relative to its root."""
    names = path.split("/")
    if not any(map(is_hidden, names)):
        return False
    parts = pattern.split("/")
    levels = [None if part == "**" else _visible_matcher(part) for part in parts]
    return not matches_parts([*levels, *([_is_visible] if levels[-1] is None else [])], names, is_hidden)


def _is_visible(name: str) -> bool:
    return not is_hidden(name)


def _visible_matcher(part: str) -> PartMatcher:
    match = re.compile(translate(part)).match
    return match if is_hidden(part) or first_wildcard(part) is None else lambda name: _is_visible(name) and match(name)


def matches_parts(
    pattern: Sequence[PartMatcher | None], parts: Sequence[str], is_passed_over: PartMatcher = _nothing
) -> bool:
    """Return whether the parts of a path match a pattern.

    Its None matches any number of parts, except those that are passed over. Only the last None that was reached is
    extended, since whatever an earlier one could take, this one can.
    """
    at = i = 0
    restart: tuple[int, int] | None = None  # after the last None: position in the pattern, in the parts
    while i < len(parts):
        matcher = pattern[at] if at < len(pattern) else _nothing
        if matcher is None:
            at += 1
            restart = at, i
        elif matcher(parts[i]):
            at, i = at + 1, i + 1
        elif restart is not None and not is_passed_over(parts[restart[1]]):
            at, i = restart[0], restart[1] + 1
            restart = at, i
        else:
            return False
    return all(matcher is None for matcher in pattern[at:])


class LeaveOut:
    """Decides which files are left out, and counts them by pattern.

    Args:
        patterns: as those of the module fnmatch.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = patterns
        self.num_files = Counter(dict.fromkeys(patterns, 0))  # a file counts for each pattern that matches it
        self.num_excluded = 0
        self.num_hidden = 0  # files that wildcards pass over, see wildcards.is_hidden

    def kept(self, found: list[tuple[str, Info]], root: str) -> list[tuple[str, Info]]:
        """Return the (name, fsspec info) pairs that are not left out; patterns do not see the `root` of the names."""
        if not self._patterns:
            return found
        return [
            (name, info)
            for name, info in found
            if not self.excludes(name.removeprefix(root), is_folder=info["type"] == "directory")
        ]

    def excludes(self, path: str, *, is_folder: bool = False) -> bool:
        """Return whether a path below the source's root is left out."""
        name = path.rpartition("/")[2]
        matching = [each for each in self._patterns if fnmatchcase(path, each) or fnmatchcase(name, each)]
        if matching and not is_folder:
            self.num_files.update(matching)
            self.num_excluded += 1
        return bool(matching)


def check_pattern(pattern: str) -> str:
    """Return the pattern; raise ValueError if it begins with !, # or /, or ends with /."""
    if not pattern.strip() or pattern.startswith(("!", "#", "/")) or pattern.endswith("/"):
        raise ValueError(
            f'{pattern!r} is not a pattern of files; write "*.tmp" for names, "drafts/*" for a folder, [!] or [#] for '
            "a name that begins so"
        )
    return pattern
