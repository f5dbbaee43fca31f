"""A work file that is damaged each time it is made: the build fails, and its message says that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.damaging import flip_bit
from tests.builders.datasets import build, lines_spec, local_store
from tests.builders.observing import messages_of_builds
from tokenloom.cli.failures import report
from tokenloom.errors import FormatError, StoreError, TokenloomError
from tokenloom.tasks.running import progress


def test_a_build_that_gives_up_on_a_spill_says_that_it_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = lines_spec(tmp_path, [f"text {i}" for i in range(40)])
    store = local_store(spec.store, spec.dataset)

    def damage(event: progress.Event) -> None:
        if isinstance(event, progress.StepStarted) and event.step == "shuffle":
            for path in store.local("work/spills").glob("*.spill"):
                flip_bit(path, -1)

    with messages_of_builds() as messages, progress.listening(damage), pytest.raises(TokenloomError) as caught:
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
