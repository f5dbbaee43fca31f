"""Give the package its description: README.md, whose links lead to the files of this version on the Web.

PyPI shows the text without the files that it links to. All else about the package is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

_ROOT = Path(__file__).resolve().parent
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_TARGET = re.compile(r"""(\]\(|(?:src|srcset|href)=")(?!\w+:|#)([^)"\s]+)""")


def _of_this_version(match: re.Match[str]) -> str:
    kind = "raw" if match[2].endswith((".svg", ".png")) else "blob"
    return f"{match[1]}{_PROJECT['urls']['Source']}/{kind}/v{_PROJECT['version']}/{match[2]}"


setup(
    long_description=_TARGET.sub(_of_this_version, (_ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
