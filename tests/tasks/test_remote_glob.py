"""Patterns of remote files: they match what fsspec matches, and a listing that fails never hides files."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.counts import count
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, put
from tests.tasks.test_local_glob import make_tree
from tokenloom.errors import InputError
from tokenloom.storage.stores import remote_retries
from tokenloom.storage.stores.remote import RemoteStore
from tokenloom.tasks.sources.files.finding import find_files, match

_PARTS = ["*", "a*", "?", "[ab]", "[!a]*", "*.txt", "**", "a", "a.txt", "[[]x]"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only briefly between retries."""
    monkeypatch.setattr(remote_retries, "FIRST_WAIT_SECONDS", 0.01)


def names_of(pattern: str) -> list[str]:
    """Return the paths of the files that a pattern matches."""
    return [file.path for file in find_files(pattern)]


def put_all(s3_url: str, *names: str) -> str:
    """Write objects of a few bytes below a fresh key; return its URL."""
    key = uuid.uuid4().hex
    for name in names:
        put(s3_url, f"{key}/{name}", b"" if name.endswith("/") else b"{}\n")
    return f"s3://{BUCKET}/{key}"


@pytest.mark.parametrize("fault", ["503", "403", "drop"])
def test_no_folder_of_a_bucket_is_left_out(s3_url: str, s3_proxy: FaultyProxy, fault: str) -> None:
    root = put_all(s3_url, "a/x.jsonl", "of/x.jsonl", "z/x.jsonl")
    s3_proxy.plan_listings("%2Fof%2F", always=fault)
    assert names_of(f"{root}/*/*.jsonl") == ["a/x.jsonl", "of/x.jsonl", "z/x.jsonl"]


@pytest.mark.parametrize("pattern", ["*/*.jsonl", "**/*.jsonl", "a/*.jsonl", "a/x*"])
def test_a_page_that_fails_is_retried_or_reported(
    s3_url: str, s3_proxy: FaultyProxy, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    root, s3_proxy.page = put_all(s3_url, *(f"a/x{i}.jsonl" for i in range(5))), 2
    s3_proxy.plan_listings("continuation-token", "ok", "503")
    with caplog.at_level(logging.WARNING):
        assert len(names_of(f"{root}/{pattern}")) == 5
    assert f"{root}/{pattern}: " in caplog.text
    assert "try 1 of 5 failed" in caplog.text
    for fault, message in [("503", "did not answer correctly in 5 tries"), ("403", "no permission to read it")]:
        s3_proxy.plan_listings("continuation-token", always=fault)
        with pytest.raises(InputError, match=message) as raised:
            find_files(f"{root}/{pattern}")
        assert str(raised.value).startswith(f"{root}/{pattern}: ")


@pytest.mark.usefixtures("s3_proxy")
def test_two_stars_lead_through_folders_without_a_name(s3_url: str) -> None:
    root = put_all(s3_url, "d/a.jsonl", "d//b.jsonl", "d///c.jsonl", "d/sub//e.jsonl", "d/x.txt")
    assert names_of(f"{root}/d/**/*.jsonl") == ["//c.jsonl", "/b.jsonl", "a.jsonl", "sub//e.jsonl"]


@pytest.mark.usefixtures("s3_proxy")
def test_a_bucket_that_is_not_there_is_named() -> None:
    with pytest.raises(
        InputError,
        match=r"s3://nobody-has: no such bucket or container; create it or correct the URL s3://nobody-has/x",
    ):
        find_files("s3://nobody-has/x/*.jsonl")


def test_a_listing_of_many_pages_succeeds_if_every_fifth_request_fails(s3_url: str, s3_proxy: FaultyProxy) -> None:
    # Without a retry of each page, one of 5,000 listings would succeed.
    root, s3_proxy.page = put_all(s3_url, *(f"a/{i:02d}.jsonl" for i in range(76))), 2
    s3_proxy.fail(0.2, seed=7)
    assert len(names_of(f"{root}/*/*.jsonl")) == 76
    assert len(RemoteStore(root).names("a")) == 76


@pytest.mark.usefixtures("s3_proxy")
@pytest.mark.parametrize("seed", range(count(3, 50)))
def test_it_matches_what_fsspec_matches(tmp_path: Path, s3_url: str, seed: int) -> None:
    numbers = random.Random(seed)
    make_tree(tmp_path, numbers)
    names = [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    root = put_all(s3_url, *names, "a b/", "a/b/", "new/z.txt")
    systems = {root: fsspec.filesystem("s3", use_listings_cache=False), "memory://tree": fsspec.filesystem("memory")}
    systems["memory://tree"].store.clear()
    for name in names:
        systems["memory://tree"].pipe(f"/tree/{name}", b"{}\n")
    for _ in range(12):
        pattern = "/".join([*numbers.choices(_PARTS, k=numbers.randint(0, 3)), numbers.choice(_PARTS[:7])])
        for url, system in systems.items():
            expected = system.glob(f"{url}/{pattern}", detail=True)
            found = match(f"{url}/{pattern}")[1]
            assert shown(found) == shown(
                (name, expected[name]) for name in expected if not name.endswith("/") and "/." not in name
            )


def shown(found: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, str, int]]:
    """Return the name, type and size of each match."""
    return [(name, info["type"], info["size"]) for name, info in found]


@pytest.mark.usefixtures("s3_proxy")
def test_an_object_that_is_named_as_a_folder_is_not_lost(s3_url: str) -> None:
    root = put_all(s3_url, "a", "a/x.txt", "b//y.txt", "c/", "d/e/")
    assert names_of(f"{root}/*") == ["a"]
    assert names_of(f"{root}/**") == ["a", "a/x.txt", "b//y.txt"]
    assert names_of(f"{root}/b//y*") == ["y.txt"]
    with pytest.raises(InputError, match=rf"{root}/a: a folder"):
        find_files(f"{root}/a*")
    put(s3_url, f"{root.removeprefix(f's3://{BUCKET}/')}/a", b"")  # an empty object represents the folder
    assert names_of(f"{root}/**") == ["a/x.txt", "b//y.txt"]


@pytest.mark.usefixtures("s3_proxy")
@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("s3://corp*/a.txt", "give each bucket a source of its own"),
        ("s3://*/a.txt", "give each bucket a source of its own"),
        ("s3://corpora", "a folder"),
        ("s3://corpora/a**/*.txt", r"\*\* must be a whole part of the path"),
        ("memory://nothing/*/*.txt", "no file matches"),
        ("memory://nothing/a**", r"\*\* must be a whole part of the path"),
    ],
)
def test_a_pattern_that_can_not_match_is_reported(pattern: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        find_files(pattern)
    assert str(raised.value).startswith(pattern.partition("**")[0])


def test_a_folder_that_other_file_systems_can_not_list_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    system = fsspec.filesystem("memory")
    for name in ("a/x.txt", "b/c/x.txt", "b/x.txt"):
        system.pipe(f"/refused/{name}", b"x")
    real = type(system).ls

    def ls(self: Any, path: str, detail: bool = True, **options: Any) -> Any:
        if path.rstrip("/").endswith("refused/b"):
            raise PermissionError(13, "Permission denied", path)
        return real(self, path, detail, **options)

    monkeypatch.setattr(type(system), "ls", ls)
    for pattern in ("*/x.txt", "**/x.txt", "**", "*/*/x.txt", "b/*"):
        with pytest.raises(InputError, match=r"memory:///refused/b/?: can't be read: Permission denied"):
            match(f"memory://refused/{pattern}")
    assert [name for name, _ in match("memory://refused/[!b]/*.txt")[1]] == ["/refused/a/x.txt"]
