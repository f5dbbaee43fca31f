"""Write the generated pages of docs/reference: spec, commands, python and errors. They are not in git.

    python scripts/reference.py [FOLDER]

The folder is docs/reference by default; scripts/site.py runs this before it builds the site. The facts stand in the
code: descriptions of fields in tokenloom/spec, help texts in tokenloom/cli, docstrings of the public names. A new field
or option appears without a change here.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a program sees only its own folder

from scripts.reference_pages import commands, errors, python_api, spec  # noqa: E402

FOLDER = ROOT / "docs" / "reference"
PAGES = {"spec": spec.page, "commands": commands.page, "python": python_api.page, "errors": errors.page}


def main(folder: Path = FOLDER) -> None:
    """Write all pages into a folder."""
    for name, page in PAGES.items():
        (folder / f"{name}.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
