"""docs/guides/conversations.md can be followed on real conversations; the tests of templates.md exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.builders.chat_families import Family, tokenizer_json
from tests.counts import full_only
from tests.docs.sessions import run_session
from tests.docs.walk import blocks, run_python

_ROOT = Path(__file__).parents[2]


def test_the_tests_that_the_page_names_exist() -> None:
    page = (_ROOT / "docs" / "guides" / "conversations.md").read_text(encoding="utf-8")
    table = page.split("## What others get wrong")[1].split("\n## ")[0]
    tests = "".join(path.read_text() for path in (_ROOT / "tests" / "chat").glob("test_*.py"))
    named = re.findall(r"`(test_\w+|_\w+)`", table)
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in tests] == []


@full_only
def test_the_page_runs_from_top_to_bottom(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").symlink_to(data_dir / "chat")
    made = tokenizer_json(
        data_dir / "tokenizers/gpt-neox-20b/tokenizer.json", Family(("<|im_start|>", "<|im_end|>")), in_pieces=True
    )
    Path("tokenizer").mkdir()
    Path("tokenizer/tokenizer.json").write_text(json.dumps(made), encoding="utf-8")
    found = list(blocks("docs/guides/conversations.md"))
    for name, language in (("chat.yaml", "yaml"), ("chatml.jinja", "jinja")):
        Path(name).write_text(next(text for kind, text in found if kind == language), encoding="utf-8")
    for language, text in found:
        if language == "console":
            run_session(text)
        elif language == "python":
            assert run_python(text, "docs/guides/conversations.md", {}) == "True\n"
