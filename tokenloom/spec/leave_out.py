"""Patterns of files that a source leaves out, as in a .gitignore file, matched against paths below the source's root.

"*.tmp"     files with such a name in any folder
"drafts"    a file or folder of this name anywhere, with everything in it
"2024/*.gz" in the folder 2024 of the root; "/" at the start or in the middle anchors a pattern to the root
"**/old/**" everything below any folder `old`
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

Info = dict[str, Any]


class LeaveOut:
    """Decides which files are left out, and counts them by pattern.

    Args:
        patterns: as in a .gitignore file, without exceptions (`!`) and comments.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._specs = [(pattern, _compiled(pattern)) for pattern in patterns]
        self.num_files = Counter(dict.fromkeys(patterns, 0))  # a file counts for each pattern that matches it
        self.num_taken = 0

    def kept(self, found: list[tuple[str, Info]], root: str) -> list[tuple[str, Info]]:
        """Return the (name, fsspec info) pairs that are not left out; patterns do not see the `root` of the names."""
        return [
            (name, info)
            for name, info in found
            if not self.takes(name.removeprefix(root), is_folder=info["type"] == "directory")
        ]

    def takes(self, path: str, *, is_folder: bool = False) -> bool:
        """Return whether a path below the source's root is left out."""
        matching = [pattern for pattern, spec in self._specs if spec.match_file(f"{path}/" if is_folder else path)]
        if matching and not is_folder:
            self.num_files.update(matching)
            self.num_taken += 1
        return bool(matching)


def check_pattern(pattern: str) -> str:
    """Return the pattern; raise ValueError if it can't match any file."""
    if any(part.include for part in _compiled(pattern).patterns):
        return pattern
    if pattern.startswith("!"):
        raise ValueError(
            f"{pattern!r}: exceptions (!) are not supported; write narrower patterns, or \\! for a name that starts "
            "with !"
        )
    if pattern.strip() and not pattern.startswith("#"):
        raise ValueError(
            f"{pattern!r} is not a valid pattern: it matches no file; write \\[ for a name that contains a bracket"
        )
    raise ValueError(f"{pattern!r} is blank or a comment and matches no file; write \\# for a name that starts with #")


def _compiled(pattern: str) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # the import takes 50 ms, and few builds need it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from `re`, for a set that contains a bracket
        return GitIgnoreSpec.from_lines([pattern])
