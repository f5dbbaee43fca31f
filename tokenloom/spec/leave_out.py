"""Patterns of files that a source leaves out, compared with the names of files and with paths below the source's root.

"*.tmp"      files with such a name in any folder
"drafts/*"   everything below the folder drafts of the root, as `*` also matches "/"
"*/old/*"    everything below folders `old` of other folders
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

Info = dict[str, Any]


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
    """Return the pattern; raise ValueError if it can't match any file, or has another meaning in a .gitignore file."""
    if not pattern.strip() or pattern.startswith(("!", "#", "/")) or pattern.endswith("/"):
        raise ValueError(
            f'{pattern!r} is not a pattern of files; write "*.tmp" for names, "drafts/*" for a folder, [!] or [#] for '
            "a name that begins so"
        )
    return pattern
