"""The programs of others in docs/comparison/, run with their packages in the place where the page has them.

Their files are those that our commands of the page import, and they read what our commands export.
"""

from __future__ import annotations

import subprocess
from itertools import count
from pathlib import Path

import pytest

from tests.docs.test_coming_from import PAGES, follow, write_corpus, write_old
from tests.peers.environments import VISION, python_of

_ENVIRONMENTS = {"hf-datasets": "datasets", "mosaicml": "streaming"}  # by page; the others have the page's name
#: What a program prints last: of a reader, how many documents or samples it has.
_READ = {
    "datatrove": "240 torch.Size([129])",
    "hf-datasets": "710 30996",
    "litdata": "242 (128,)",
    "megatron": "700 30413 50256",
    "mosaicml": "242 (128,)",
}


@pytest.mark.parametrize("name", PAGES)
def test_their_programs_write_what_we_import_and_read_what_we_export(
    name: str, tiktoken_cache: Path, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(data_dir)
    Path("tokenizer.json").symlink_to(data_dir / "tokenizers/gpt2/tokenizer.json")
    if name == "megatron":
        write_old(name)  # preprocess_data.py is in no released package
    python, printed, numbers = python_of(_ENVIRONMENTS.get(name, name)), [], count()
    before = VISION if name == "mosaicml" else ""

    def run(program: str) -> None:
        path = Path(f"program_{next(numbers)}.py")  # a file, because some start processes that import it
        path.write_text(before + program)
        done = subprocess.run([python, "-W", "ignore", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.strip().splitlines()[-1:])

    follow(name, run)
    assert [_READ[name]] in printed
