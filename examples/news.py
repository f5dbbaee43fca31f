"""Write a small dataset's files and spec into the current folder: `python -m tokenloom.examples.news`.

The texts are made, and the same everywhere: three files of 400 JSON lines with the keys `id`, `title`, `text`, `lang`
and `score`, of which a few are duplicates; and news.yaml, which builds them as bytes, without a vocabulary to fetch.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

_WORDS = {
    "en": "the river rose again market fell after rain a harbour opened near old station where trains wait for miners",
    "fr": "le fleuve monte encore et marché tombe après pluie un port ouvre près de vieille gare où trains attendent",
}
_SPEC = """\
# news.yaml
dataset: news
store: ./store
sources:
  - {kind: jsonl, path: data/*.jsonl, text: text, id: id}
tokenizer: byte
splits: {train: 0.9, validation: 0.1}
"""


def _rows(file: int) -> list[dict[str, object]]:
    """Return the rows of a file; every hundredth repeats the text of the one before."""
    rng = random.Random(file)
    rows: list[dict[str, object]] = []
    for number in range(400):
        lang = "fr" if number % 5 == 4 else "en"
        words = rng.choices(_WORDS[lang].split(), k=rng.randint(8, 60))
        text = rows[-1]["text"] if number % 100 == 99 else " ".join(words).capitalize() + "."
        name = {"id": f"{file}-{number}", "title": " ".join(words[:4]).title()}
        rows.append(name | {"text": text, "lang": lang, "score": round(rng.random(), 3)})
    return rows


if __name__ == "__main__":
    Path("data").mkdir(exist_ok=True)
    for index in range(3):
        lines = [json.dumps(row, ensure_ascii=False) for row in _rows(index)]
        Path(f"data/{index}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    Path("news.yaml").write_text(_SPEC, encoding="utf-8")
