"""Tokenizers in folders of save_pretrained and on the Hugging Face Hub: what is pinned, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from huggingface_hub import constants
from tokenizers import processors

from tests.builders.datasets import build, lines_spec, local_store, manifest_json, stored_documents
from tests.servers.model_hub import ModelHub
from tests.tokenloom.test_huggingface_tokenizer import train_bpe, train_wordpiece
from tests.tokenloom.tokenizer_conformance import EOT, encode_each, refused
from tokenloom.cli.main import main
from tokenloom.reader.dataset import TokenDataset
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tokenizers import Tokenizer, load_tokenizer, pinned_fields
from tokenloom.tokenizers.model_files import chat_files

_FIRST, _SECOND = "1" * 40, "2" * 40
_ON_HUB = {"kind": "huggingface", "name": "org/model"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModelHub]:
    """A hub, and an empty cache of huggingface_hub."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with ModelHub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


Place = Callable[..., dict[str, Any]]


@pytest.fixture(params=["folder", "hub"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A function that puts files into a folder or a model on the hub, and returns the definition that names it."""

    def put_into_folder(**files: bytes) -> dict[str, Any]:
        folder = tmp_path / "saved"
        folder.mkdir()
        for name, data in files.items():
            (folder / f"{name.removesuffix('_json')}.json").write_bytes(data)
        return {"kind": "huggingface", "path": str(folder)}

    def put_on_hub(**files: bytes) -> dict[str, Any]:
        request.getfixturevalue("hub").publish(_FIRST, **files)
        return _ON_HUB

    return put_into_folder if request.param == "folder" else put_on_hub


def pinned(definition: dict[str, Any]) -> dict[str, Any]:
    """Return a definition as a plan pins it."""
    return definition | pinned_fields(definition)


def pinned_eot(definition: dict[str, Any]) -> str | None:
    """Return the end-of-text token of the pinned definition, None if the spec and the config determine none."""
    eot: str | None = pinned(definition).get("eot")
    return eot


def loaded(definition: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of a definition that a plan pins."""
    return load_tokenizer(pinned(definition))


@lru_cache
def without_known_end() -> bytes:
    """Return a tokenizer.json like Llama 3's: two special tokens of other names, and a template with one of them."""
    library = tokenizers.Tokenizer.from_str(train_bpe().replace(EOT, "<|end|>").replace('"<s>"', '"<|begin|>"'))
    library.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 1)])
    return library.to_str().encode()


def config(**fields: Any) -> bytes:
    """Return a tokenizer_config.json."""
    return json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | fields).encode()


# The end-of-text token


@pytest.mark.parametrize("eos", ["<|end|>", {"content": "<|end|>", "lstrip": False, "special": True}])
def test_the_config_determines_an_end_of_text_that_tokenizer_json_does_not(eos: Any, place: Place) -> None:
    definition = place(tokenizer_json=without_known_end(), tokenizer_config_json=config(eos_token=eos))
    tokenizer = loaded(definition)
    assert pinned_eot(definition) == "<|end|>"
    assert tokenizer.decode(np.array([tokenizer.eot_id])) == EOT
    assert (
        load_tokenizer({"kind": "huggingface", "eot": "<|end|>"}, tokenizer.files).fingerprint == tokenizer.fingerprint
    )


@pytest.mark.parametrize(
    ("train", "content"),
    [
        (train_bpe, config(eos_token=EOT)),
        (train_wordpiece, config(eos_token="[SEP]")),
        (train_bpe, config(eos_token=None)),
        (train_bpe, None),
    ],
)
def test_the_config_does_not_change_what_tokenizer_json_determines(
    train: Callable[[], str], content: bytes | None, place: Place
) -> None:
    files = {} if content is None else {"tokenizer_config_json": content}
    definition = place(tokenizer_json=train().encode(), **files)
    alone = load_tokenizer({"kind": "huggingface"}, {"tokenizer.json": train().encode()})
    assert pinned_eot(definition) is None
    assert loaded(definition).fingerprint == alone.fingerprint


_BAD_TOKENS: list[Any] = [[EOT], {"0": EOT}, {"0": {}}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (config(eos_token="<s>"), r"its eos_token is '<s>', there the end-of-text token is '<\|endoftext\|>'"),
        *((content, r"tokenizer_config\.json.*; download it again") for content in (b"{", b"[]", b"\xff")),
        *((config(added_tokens_decoder=tokens), "contradicts") for tokens in _BAD_TOKENS),
        (config(added_tokens_decoder={"9": {"content": "<new>"}}), "'<new>', which is not an added token there"),
        (config(add_prefix_space=True), "add_prefix_space is true, there it is false; .* write both"),
    ],
)
def test_a_config_that_is_not_one_or_contradicts_tokenizer_json_is_refused(
    content: bytes, message: str, place: Place
) -> None:
    with refused(message):
        pinned(place(tokenizer_json=train_bpe().encode(), tokenizer_config_json=content))


@pytest.mark.parametrize("content", [b"{", config(eos_token="<s>")])
def test_the_eot_of_a_spec_needs_no_config(content: bytes, place: Place) -> None:
    definition = place(tokenizer_json=train_bpe().encode(), tokenizer_config_json=content) | {"eot": "<s>"}
    assert loaded(definition).eot_id == 1


@pytest.mark.parametrize("eos", [["<|end|>", "<s>"], {"content": ["<s>"]}, 2])
def test_an_eos_token_that_is_not_one_token_is_refused_with_the_next_step(eos: Any, place: Place) -> None:
    definition = place(tokenizer_json=without_known_end(), tokenizer_config_json=config(eos_token=eos))
    with refused(rf"its eos_token is {re.escape(json.dumps(eos))}, not one token; give .* as tokenizer\.eot$"):
        pinned(definition)


# One tokenizer, named in several ways


def test_hub_folder_and_file_are_the_same_tokenizer(hub: ModelHub, tmp_path: Path) -> None:
    data = train_bpe().encode()
    hub.publish(_FIRST, tokenizer_json=data, tokenizer_config_json=config(eos_token=EOT))
    (tmp_path / "tokenizer.json").write_bytes(data)
    by_path = [{"kind": "huggingface", "path": str(path)} for path in (tmp_path, tmp_path / "tokenizer.json")]
    tokenizer, *others = (loaded(definition) for definition in (_ON_HUB, *by_path))
    assert {each.fingerprint for each in others} == {tokenizer.fingerprint}
    assert (tokenizer.name, tokenizer.files) == ("org/model", {"tokenizer.json": data})


def test_a_folder_of_save_pretrained_is_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    library = tokenizers.Tokenizer.from_buffer(without_known_end())
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=library, eos_token="<|end|>", bos_token="<|begin|>")
    fast.save_pretrained(tmp_path)
    tokenizer = loaded({"kind": "huggingface", "path": str(tmp_path)})
    assert tokenizer.eot_id == fast.eos_token_id
    text = "lorem ipsum, naïve café"
    assert encode_each(tokenizer, [text]) == [[*fast.encode(text, add_special_tokens=False), fast.eos_token_id]]


def test_a_folder_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    with refused(r"it has no tokenizer\.json; write it with save_pretrained"):
        pinned({"kind": "huggingface", "path": str(tmp_path)})


# The hub


def test_a_branch_is_pinned_to_its_commit(hub: ModelHub) -> None:
    hub.publish(_FIRST, tokenizer_json=train_bpe().encode())
    definition = pinned(_ON_HUB)
    assert definition["revision"] == _FIRST
    hub.publish(_SECOND, tokenizer_json=train_wordpiece().encode())
    hub.asked.clear()
    assert load_tokenizer(definition).vocab_size == 302  # as in a job, which asks nobody
    assert hub.asked == []
    assert pinned(_ON_HUB)["revision"] == _SECOND
    assert pinned(_ON_HUB | {"revision": _FIRST})["revision"] == _FIRST


def test_a_version_lists_the_file_and_its_commit_and_needs_no_hub(hub: ModelHub, tmp_path: Path) -> None:
    hub.publish(_FIRST, tokenizer_json=without_known_end(), tokenizer_config_json=config(eos_token="<|end|>"))
    spec = _spec(tmp_path)
    version = build(spec).version
    hub.stop()
    shutil.rmtree(tmp_path / "hub")
    manifest = manifest_json(local_store(spec.store, spec.dataset), version)
    assert manifest["spec"]["tokenizer"] == {**_ON_HUB, "revision": _FIRST, "eot": "<|end|>"}
    assert manifest["tokenizer"]["name"] == "org/model"
    assert "tokenizer/tokenizer.json" in manifest["files"]
    reference = f"{spec.store}/data@{version}"
    dataset = TokenDataset(reference, seq_len=4)
    texts = [dataset.decode(document["ids"]) for document in stored_documents(spec, version)]
    assert sorted(texts) == ["dolor", "lorem ipsum"]
    assert main(["verify", reference, "--deep"]) == 0


def test_a_version_that_lists_no_file_does_not_ask_the_hub(hub: ModelHub) -> None:
    hub.publish(_FIRST, tokenizer_json=train_bpe().encode())
    with refused("needs a file"):
        load_tokenizer(_ON_HUB, {})
    assert hub.asked == []


def test_another_commit_with_the_same_file_is_another_version_of_the_same_spills(hub: ModelHub, tmp_path: Path) -> None:
    hub.publish(_FIRST, tokenizer_json=train_bpe().encode())
    first = build(_spec(tmp_path))
    assert build(_spec(tmp_path)).version == first.version
    hub.publish(_SECOND, tokenizer_json=train_bpe().encode(), readme_json=b"{}")
    second = build(_spec(tmp_path))
    assert (first.num_encoded, second.num_encoded) == (1, 0)
    assert second.version != first.version
    assert build(_spec(tmp_path, revision=_FIRST)).version == first.version


def test_a_cached_commit_needs_no_network_where_huggingface_hub_is_offline(
    hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.publish(_FIRST, tokenizer_json=train_bpe().encode())
    online = loaded(_ON_HUB)
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pinned(_ON_HUB)["revision"] == _FIRST
    assert loaded(_ON_HUB).fingerprint == online.fingerprint
    with refused(r"revision v2: .*the network and HF_HUB_OFFLINE"):
        pinned(_ON_HUB | {"revision": "v2"})
    with refused(r"tokenizer_config\.json is not in the cache, and HF_HUB_OFFLINE is set"):
        chat_files(pinned(_ON_HUB | {"eot": EOT}))
    assert hub.asked == []


def test_a_hub_that_does_not_answer_is_an_error_although_a_commit_is_cached(hub: ModelHub) -> None:
    hub.publish(_FIRST, tokenizer_json=train_bpe().encode())
    definition = pinned(_ON_HUB)
    hub.stop()
    with refused(r"org/model, revision main: tokenizer\.json can't be fetched.*the network and"):
        pinned(_ON_HUB)
    assert load_tokenizer(definition).eot_id == 0


_REFUSALS: list[tuple[dict[str, Any], tuple[int, str] | None, str]] = [
    ({"name": "org/other"}, None, r"^tokenizer org/other, revision main: .*Repository Not Found"),
    ({}, (403, "GatedRepo"), "GatedRepo.* for a private or restricted model, set HF_TOKEN"),
    ({"revision": "3" * 40}, None, "revision 3{40}: .*check its name and revision"),
    ({}, None, r"tokenizer\.json can't be fetched .*Entry Not Found.* kind: sentencepiece"),
    ({}, (500, ""), "500.*the network"),
]


@pytest.mark.parametrize(("fields", "refusal", "message"), _REFUSALS)
def test_what_the_hub_refuses_is_named_in_one_line(
    fields: dict[str, Any], refusal: tuple[int, str] | None, message: str, hub: ModelHub
) -> None:
    hub.refusal = refusal
    hub.publish(_FIRST, README_json=b"")
    with refused(message) as raised:
        pinned(_ON_HUB | fields)
    assert "\n" not in str(raised.value)


def test_the_commands_say_that_the_end_of_text_comes_from_the_config(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    definition = place(tokenizer_json=without_known_end(), tokenizer_config_json=config(eos_token="<|end|>"))
    spec = str(write_spec(tmp_path, definition | {"backend": "reference"}))
    for command in ("tokenizer", "plan"):
        assert main([command, spec]) == 0
        assert "302 ids, end of text 0 '<|end|>', the eos_token of tokenizer_config.json\n" in capsys.readouterr().out
        assert main([command, spec, "--set", "tokenizer.eot=<|end|>"]) == 0
        assert "302 ids, end of text 0 '<|end|>'\n" in capsys.readouterr().out


def write_spec(folder: Path, tokenizer: dict[str, Any]) -> Path:
    """Write a spec of a text file."""
    (folder / "a.txt").write_text("lorem")
    source, run = "{kind: text, path: a.txt}", "runner: {kind: process, workers: 0}"
    path = folder / "spec.yaml"
    path.write_text(f"dataset: d\nstore: st\nsources: [{source}]\ntokenizer: {json.dumps(tokenizer)}\n{run}\n")
    return path


def _spec(folder: Path, **fields: Any) -> BuildSpec:
    """Return the spec of a small dataset with the tokenizer of the hub."""
    return lines_spec(folder, ["lorem ipsum", "dolor"], tokenizer=_ON_HUB | fields)


def test_a_model_of_the_hub_brings_its_chat_template(hub: ModelHub) -> None:
    tokenizer = {"tokenizer_json": train_bpe().encode()}
    given = config(bos_token="<s>", chat_template="{{ 'of the config' }}")
    hub.publish(_FIRST, **tokenizer, tokenizer_config_json=given)
    assert chat_files(pinned(_ON_HUB)) == ("{{ 'of the config' }}", {"bos_token": "<s>"})
    hub.publish(_SECOND, **tokenizer, tokenizer_config_json=given, chat_template_jinja=b"{{ 'of the file' }}")
    assert chat_files(pinned(_ON_HUB)).template == "{{ 'of the file' }}"
    assert chat_files(pinned(_ON_HUB | {"revision": _FIRST})).template == "{{ 'of the config' }}"
