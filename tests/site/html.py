"""What the tests read from a page of the site."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

_LOADING = {"img": "src", "script": "src", "source": "srcset", "iframe": "src", "video": "src", "audio": "src"}
_LOADING_RELATIONS = {"icon", "modulepreload", "preconnect", "preload", "prefetch", "stylesheet"}


class Document(HTMLParser):
    """The links, anchors, loaded files and tags of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.tags: Counter[str] = Counter()  # of the text, without the navigation
        self._inside = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag links to, loads or names."""
        values = {name: value or "" for name, value in attrs}
        self._inside |= tag == "article"
        if self._inside:
            self.tags[tag] += 1
        self.anchors.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get(_LOADING.get(tag, "")):
            self.loaded.append(values[_LOADING[tag]])
        if tag == "link" and _LOADING_RELATIONS.intersection(values.get("rel", "").split()):
            self.loaded.append(values["href"])

    def handle_endtag(self, tag: str) -> None:
        """Note where the text of the page ends."""
        self._inside &= tag != "article"
