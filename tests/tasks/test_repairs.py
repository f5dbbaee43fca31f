"""A work file that is damaged each time it is made: the build fails, and its message says that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.datasets import build, local_store, make_spec, write_jsonl
from tokenloom.cli.failures import report
from tokenloom.errors import FormatError, StoreError, TokenloomError
from tokenloom.tasks.running import progress


def test_a_build_that_gives_up_on_a_spill_says_that_it_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = {"kind": "jsonl", "path": str(write_jsonl(tmp_path / "a.jsonl", [f"text {i}" for i in range(40)]))}
    spec = make_spec(tmp_path / "store", [source])
    store = local_store(spec.store, spec.dataset)
    messages: list[str] = []

    def damage(event: progress.Event) -> None:
        if isinstance(event, progress.StepStarted) and event.step == "shuffle":
            for path in store.local("work/spills").glob("*.spill"):
                data = bytearray(path.read_bytes())
                data[-1] ^= 1
                path.write_bytes(data)
        elif isinstance(event, progress.Message):
            messages.append(event.text)

    with progress.listening(damage), pytest.raises(TokenloomError) as caught:
        build(spec)
    assert [text.endswith("the partition is encoded again") for text in messages] == [True, True]
    assert isinstance(caught.value, StoreError) and not isinstance(caught.value, FormatError)
    assert report(caught.value) == 1
    printed = capsys.readouterr().err
    assert "block 0 (of 128 KiB) is damaged" in printed
    assert "The build failed and nothing was published: its partition was encoded again 2 times" in printed
    assert "check the disk of" in printed and "run the same command again" in printed
    assert "tokenloom verify" not in printed
    assert not store.names("versions") or not list(store.local("versions").rglob("manifest.json"))
