"""Build the site of the documentation: `python scripts/site.py` writes site/, which needs no network when it is read.

The pages are those of docs/, so that they can be read on GitHub too, with relative links. The site also shows pages
of the root (CHANGELOG.md and others) and those that scripts/reference.py makes. All are collected in build/pages,
where a link leads to the page's place on the site, or to GitHub if the file is on no page.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "https://github.com/tokenloom/tokenloom"
#: Pages of the root and their places on the site.
OF_THE_ROOT = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)|(?<=\]: )(?!\w+:|#)([^#\s]+)$", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def place_of(path: Path) -> Path | None:
    """Return where the site has a file of the repository, or None. Both paths are relative."""
    if path.as_posix() in OF_THE_ROOT:
        return Path(OF_THE_ROOT[path.as_posix()])
    return path.relative_to("docs") if path.is_relative_to("docs") else None


def rewritten(text: str, page: Path) -> str:
    """Return the text of a page of the repository with links that work on the site; code stays as it is."""
    own = place_of(page)
    assert own is not None

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / match[0]))
        place = place_of(target)
        if place is not None:
            return Path(os.path.relpath(place, own.parent)).as_posix()
        if not (ROOT / target).exists():
            return match[0]  # the builder reports it
        return f"{SOURCE}/{'tree' if (ROOT / target).is_dir() else 'blob'}/main/{target.as_posix()}"

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, text[end:])])


def collect(pages: Path) -> None:
    """Write every page of the site, and its pictures, to the folder `pages`."""
    shutil.rmtree(pages, ignore_errors=True)
    files = [path.relative_to(ROOT) for path in ROOT.glob("docs/**/*") if path.is_file()]
    for path in [*files, *(Path(name) for name in OF_THE_ROOT if (ROOT / name).exists())]:
        place = place_of(path)
        assert place is not None
        (pages / place).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            (pages / place).write_text(rewritten((ROOT / path).read_text("utf-8"), path), "utf-8")
        else:
            shutil.copyfile(ROOT / path, pages / place)
    if (ROOT / "scripts/reference.py").exists():
        subprocess.run([sys.executable, ROOT / "scripts/reference.py", pages / "reference"], check=True)


def build_with_zensical(config: Path) -> None:
    """Build with Zensical; a warning names page and line."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(_COLOURS.sub("", done.stdout) or done.stderr)


def build_with_mkdocs(config: Path) -> None:
    """Build with MkDocs and its own theme, which loads nothing from other hosts and depends on no other package."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    logging.basicConfig(format="%(levelname)s: %(message)s")
    theme = {"name": "mkdocs", "color_mode": "auto", "user_color_mode_toggle": True, "highlightjs": False}
    build(load_config(str(config), theme=theme, strict=True))


def build_site(folder: Path, mkdocs: bool = False) -> Path:
    """Build the site below a folder and return it; warnings are errors."""
    config = folder / "mkdocs.yml"
    if folder != ROOT:
        shutil.copyfile(ROOT / "mkdocs.yml", config)
    collect(folder / "build/pages")
    (build_with_mkdocs if mkdocs else build_with_zensical)(config)
    return folder / "site"


def main() -> None:
    """Build the site as the command line says."""
    parser = argparse.ArgumentParser(description="Build the site into site/.")
    parser.add_argument("--folder", type=Path, default=ROOT, help="where to build it; the clone, if not given")
    parser.add_argument("--mkdocs", action="store_true", help="build with MkDocs in place of Zensical")
    arguments = parser.parse_args()
    site = build_site(arguments.folder.resolve(), arguments.mkdocs)
    print(f"python -m http.server --directory {os.path.relpath(site)}")


if __name__ == "__main__":
    main()
