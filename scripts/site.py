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
#: Folders of docs/ for readers of the repository alone.
NOT_ON_THE_SITE = ("project/evidence", "project/notebook")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)[^)#\s]+")
_NOT_SEARCHED = "---\nsearch: {exclude: true}\n---\n\n"  # notes on the project would crowd out the guides
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_NAMED_LINK = re.compile(r"\[[\w./-]+\.md\]\((?!\w+:|#)([^)#\s]+)")
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")


def place_of(path: Path) -> Path | None:
    """Return where the site has a file of the repository, or None. Both paths are relative."""
    if path.as_posix() in OF_THE_ROOT:
        return Path(OF_THE_ROOT[path.as_posix()])
    if not path.is_relative_to("docs") or any(path.is_relative_to(f"docs/{folder}") for folder in NOT_ON_THE_SITE):
        return None
    return path.relative_to("docs")


def source_of(place: Path) -> Path:
    """Return the file of the repository that the site has at a place; the inverse of place_of."""
    of_the_root = {there: name for name, there in OF_THE_ROOT.items()}
    return Path(of_the_root.get(place.as_posix(), Path("docs") / place))


def titles(pages: Path) -> dict[Path, str]:
    """Return what the site calls each page: its name in the navigation, or else its heading."""
    named = re.findall(r"^ *- ([^:\n]+): ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    headings = {page.relative_to(pages): page.read_text("utf-8").partition("\n")[0] for page in pages.rglob("*.md")}
    return {place: heading.removeprefix("# ") for place, heading in headings.items()} | {
        Path(place): name for name, place in named
    }


def rewritten(text: str, place: Path, titles: dict[Path, str]) -> str:
    """Return the text of the page at a place as the site shows it; code stays as it is.

    Links work on the site, and a link that is called by the name of a file, such as rows.md, by the page's title.
    GitHub needs a backslash before a bar in code of a table, which the site would show.
    """
    folder = source_of(place).parent

    def name(match: re.Match[str]) -> str:
        title = titles.get(place_of(Path(os.path.normpath(folder / match[1]))) or Path())
        return f"[{title}]({match[1]}" if title else match[0]

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match[0]))
        if (there := place_of(target)) is not None:
            return Path(os.path.relpath(there, place.parent)).as_posix()
        if not (ROOT / target).exists():
            return match[0]  # the builder reports it
        return f"{SOURCE}/{'tree' if (ROOT / target).is_dir() else 'blob'}/main/{target.as_posix()}"

    def bars(row: re.Match[str]) -> str:
        return _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0])

    parts = _FENCE.split(text)  # text, code, text, ...
    parts[::2] = [_TABLE_ROW.sub(bars, _LINK.sub(link, _NAMED_LINK.sub(name, part))) for part in parts[::2]]
    return "".join(parts)


def _is_of_the_project(place: Path) -> bool:
    return place.parts[0] == "project" and place.stem != "security"


def collect(pages: Path) -> None:
    """Write every page of the site, and its pictures, to the folder `pages`."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    for folder in NOT_ON_THE_SITE:
        shutil.rmtree(pages / folder)
    for name, page_of_root in OF_THE_ROOT.items():
        shutil.copyfile(ROOT / name, pages / page_of_root)
    subprocess.run([sys.executable, ROOT / "scripts/reference.py", pages / "reference"], check=True)
    known = titles(pages)
    for page in pages.rglob("*.md"):
        place = page.relative_to(pages)
        text = rewritten(page.read_text("utf-8"), place, known)
        page.write_text(_NOT_SEARCHED + text if _is_of_the_project(place) else text, "utf-8")


def build_with_zensical(config: Path) -> None:
    """Build with Zensical; a warning names page and line."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        warnings, _, traceback = done.stderr.partition("Traceback")
        raise SystemExit(_COLOURS.sub("", warnings) or traceback)


def build_with_mkdocs(config: Path) -> None:
    """Build with MkDocs and its own theme, which loads nothing from other hosts and needs no other package."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    logging.basicConfig(format="%(levelname)s: %(message)s")
    theme = {"name": "mkdocs", "color_mode": "auto", "user_color_mode_toggle": True, "highlightjs": False}
    build(load_config(str(config), theme=theme, strict=True))


def main() -> None:
    """Build the site as the command line says."""
    parser = argparse.ArgumentParser(description="Build the site into site/.")
    parser.add_argument("--folder", type=Path, default=ROOT, help="where to build it; the clone, if not given")
    parser.add_argument("--mkdocs", action="store_true", help="build with MkDocs in place of Zensical")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if folder != ROOT:
        shutil.copyfile(ROOT / "mkdocs.yml", folder / "mkdocs.yml")
    collect(folder / "build/pages")
    (build_with_mkdocs if arguments.mkdocs else build_with_zensical)(folder / "mkdocs.yml")
    print(f"python -m http.server --directory {os.path.relpath(folder / 'site')}")


if __name__ == "__main__":
    main()
