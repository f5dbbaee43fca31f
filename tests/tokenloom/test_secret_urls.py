"""A secret in a URL is refused wherever a URL can be given, and is never shown."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.datasets import write_parquet
from tokenloom.cli.main import main
from tokenloom.wording import redacted

_PLANTED = "planted-3e9f51c07a"
_URLS = [
    f"s3://key:{_PLANTED}@bucket/x",
    f"https://user:{_PLANTED}@127.0.0.1:9/x",
    f"https://127.0.0.1:9/x?X-Amz-Signature={_PLANTED}",
    f"abfs://c@account.dfs.core.windows.net/x?sig={_PLANTED}",
    f"gs://bucket/x?access_token={_PLANTED}",
    f"https://{_PLANTED}@127.0.0.1:9/x",
    f"https://127.0.0.1:9/x#access_token={_PLANTED}",
    f"simplecache::s3://key:{_PLANTED}@bucket/x",
    f"s3://bucket/x?AWSAccessKeyId={_PLANTED}&Signature={_PLANTED}",
]
_PARQUET: dict[str, Any] = {"kind": "parquet", "path": "a.parquet"}
_IN_SPEC: dict[str, Callable[[str], dict[str, Any]]] = {
    "store": lambda url: {"store": url},
    "source": lambda url: {"sources": [_PARQUET | {"path": url}]},
    "name of a source": lambda url: {"sources": [_PARQUET | {"name": url}]},
    "filter": lambda url: {"sources": [_PARQUET | {"filter": url}]},
    "huggingface": lambda url: {"sources": [{"kind": "huggingface", "name": url, "split": "train"}]},
    "data files": lambda url: {
        "sources": [{"kind": "huggingface", "name": "json", "split": "train", "data_files": url}]
    },
    "exclude": lambda url: {"documents": {"exclude": url}},
    "ranks": lambda url: {"tokenizer": {"kind": "tiktoken", "ranks": url, "pattern": "gpt2"}},
    "tokenizer.json": lambda url: {"tokenizer": {"kind": "huggingface", "path": url}},
    "tokenizer.model": lambda url: {"tokenizer": {"kind": "sentencepiece", "path": url}},
    "block": lambda url: {"credentials": [{"protocol": "s3", "block": url}]},
    "unknown key": lambda url: {url: 1},
    "dataset": lambda url: {"dataset": url},
}
_BUILD = ["build", "spec.yaml", "--direct", "--workers", "0"]
_PLAN = ["plan", "spec.yaml"]
_COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "set store": lambda url: [*_PLAN, "--set", f"store={url}"],
    "set source": lambda url: [*_PLAN, "--set", f"sources.0.path={url}"],
    "set unknown": lambda url: [*_PLAN, "--set", f"nonsense={url}"],
    "set bare": lambda url: [*_PLAN, "--set", url],
    "set exclude": lambda url: [*_PLAN, "--set", f"documents.exclude={url}"],
    "plan": lambda url: ["plan", url],
    "build": lambda url: ["build", url, "--direct"],
    "init": lambda url: ["init", url],
    "ls": lambda url: ["ls", url],
    "inspect": lambda url: ["inspect", f"{url}/data@latest"],
    "inspect alone": lambda url: ["inspect", url],
    "tag": lambda url: ["tag", f"{url}/data", "prod"],
    "tag alone": lambda url: ["tag", "store/data", url],
    "rollback to": lambda url: ["rollback", "store/data", "--to", url],
    "log": lambda url: ["log", f"{url}/data", "--tag", url],
    "trace store": lambda url: ["trace", "--store", url, "--state", "spec.yaml", "--step", "+0"],
    "where text": lambda url: ["where", "store/data", "--text", url],
    "demo": lambda url: ["demo", "--dir", url, "--updates", "1", "--direct", "--workers", "0"],
}


def write_spec(folder: Path, **changes: Any) -> None:
    """Write a small valid spec, with changes."""
    write_parquet(folder / "a.parquet", ["one", "two"])
    spec = {"dataset": "data", "store": "store", "sources": [_PARQUET], "tokenizer": {"kind": "byte"}}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec | changes))


def commands(url: str) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    """Yield every way to give a URL: its name, the arguments of the command, the changes to the spec."""
    for name, change in _IN_SPEC.items():
        yield f"plan {name}", _PLAN, change(url)
        yield f"build {name}", _BUILD, change(url)
    for name, command in _COMMANDS.items():
        yield name, command(url), {}


@pytest.mark.parametrize("url", _URLS)
def test_no_secret_of_a_url_is_shown(
    url: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Try every way in turn, in this process."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    shown = []
    for number, (place, arguments, changes) in enumerate(commands(url)):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        write_spec(tmp_path / str(number), **changes)
        caplog.clear()
        try:
            code = main(arguments)
        except SystemExit as error:
            code = int(error.code or 0)
        out = capfd.readouterr()
        logs = "\n".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records)
        if code == 0:
            shown.append(f"{place}: it was accepted")
        shown += [f"{place}: {text}" for text in (out.out, out.err, logs) if _PLANTED in text]
    assert shown == []


@pytest.mark.parametrize(
    "name", ["%73ig", "s%49G", "%53ignature", "x;token", "jwt", "id_jwt", "auth", "Authorization", "pwd", "db_pwd"]
)
def test_other_spellings_of_a_secret_are_hidden(name: str) -> None:
    for mark in "?&#;":
        text = f"https://host/x{mark}{name}={_PLANTED}"
        assert _PLANTED not in redacted(text)
        assert redacted(text) != text


@pytest.mark.parametrize("url", ["https://host/x?author=me", "https://host/x?page=2;part=3", "s3://bucket/a;b=c"])
def test_other_parts_of_a_url_are_shown(url: str) -> None:
    assert redacted(url) == url
