"""What is in a version's name: for each key of a spec and each file outside, what changes bytes changes the name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.builders.audit import Pair, check_pair
from tests.builders.audit_files import FILES, file_pairs
from tests.builders.audit_keys import OTHER_BRANCH, key_pairs, keys_of
from tests.builders.audit_marks import mark_pairs
from tests.builders.audit_rules import rule_pairs
from tests.builders.chat_tokenizer import write_chat_tokenizer
from tests.counts import every
from tests.servers.model_hub import ModelHub

PAIRS = [*key_pairs(), *rule_pairs(), *mark_pairs(), *file_pairs()]
_PREFIX = "file "


@pytest.fixture(autouse=True, scope="module")
def _hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let huggingface_hub ask a server here, which has a tokenizer, and another one on another branch."""
    import datasets  # noqa: F401 # takes as long as many pairs

    folder = tmp_path_factory.mktemp("hub")
    write_chat_tokenizer(folder / "tokenizer.json")
    first = (folder / "tokenizer.json").read_bytes()
    write_chat_tokenizer(folder / "tokenizer.json", composes=True)
    with pytest.MonkeyPatch.context() as patch, ModelHub() as hub:
        hub.publish("1" * 40, tokenizer_json=first)
        hub.files["2" * 40] = {"tokenizer.json": (folder / "tokenizer.json").read_bytes()}
        hub.branches[OTHER_BRANCH] = "2" * 40
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
        patch.setattr(constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield


@pytest.mark.parametrize("pair", every(3, PAIRS), ids=lambda pair: pair.name)
def test_a_change_that_changes_bytes_changes_the_name_and_no_other_one_does(pair: Pair, tmp_path: Path) -> None:
    check_pair(tmp_path, pair)


def test_every_key_of_a_spec_and_every_file_outside_has_a_pair() -> None:
    keys = {pair.key for pair in PAIRS if not pair.key.startswith(_PREFIX)}
    assert keys == set(keys_of())
    assert {pair.key.removeprefix(_PREFIX) for pair in PAIRS if pair.key.startswith(_PREFIX)} == set(FILES)
    assert len(PAIRS) >= 150
    assert [name for name, number in Counter(pair.name for pair in PAIRS).items() if number > 1] == []


def test_a_pair_of_a_key_changes_the_spec_and_that_of_a_file_a_file(tmp_path: Path) -> None:
    unchanged = []
    for number, pair in enumerate(PAIRS):
        folder = tmp_path / str(number)
        folder.mkdir()
        fields = pair.base(folder)
        before = json.dumps(fields), _contents(folder)
        pair.change(folder, fields)
        changes = [json.dumps(fields) != before[0], _contents(folder) != before[1]]
        if not (changes[1] if pair.key.startswith(_PREFIX) else any(changes)):
            unchanged.append(pair)
    assert [pair.name for pair in unchanged if pair.label != "a new time"] == []


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
