"""Read versions whose files contain hostile values with valid checksums, and report the effects.

    python -m tests.drivers.hostile_driver STORE local|remote MOST GROUP...    STORE/data is a small version

Prints a JSON object for each group of cases: how many ran, how they ended, and what did what reading must not do.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import operator
import os
import random
import resource
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import filelock  # noqa: F401  (a remote store imports it late)
import fsspec
import xxhash

from tests.builders.memory_objects import SCHEME
from tokenloom import TokenDataset, TokenLoader
from tokenloom.cli.commands import look, peek
from tokenloom.cli.output import Output
from tokenloom.errors import TokenloomError
from tokenloom.storage.formats.records import canonical_json, sign

Case = tuple[str, dict[str, bytes]]  # what was changed; the files that differ from the good version
DELETED = object()
TEXTS = ["../../../etc/passwd", "/etc/passwd", "..", "a/../../b", "file:///etc/passwd", "s3://other/bucket", "a\0b"]
TEXTS += ["x" * 5000, "", "\ud800", "train/../../../../../etc/passwd", "os", "/dev/zero", "\x1b[31m", "0" * 64]
NUMBERS = [-1, 0, 1, 2**31, 2**63 - 1, 2**70, 1e308, float(2**40)]
NASTY = [*TEXTS, *NUMBERS, None, True, [], {}, [[[[]]]], {"a": {"b": [None]}}, ["../x"], {"..": "/etc/passwd"}, DELETED]
_SECONDS = 10
_WRITES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.utime")
_NEVER = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect"}
_ABOUT_MACHINE = ("/sys/fs/cgroup", "/sys/devices/virtual/bdi")  # memory, and what the kernel reads around a fault
_NEVER |= {"pickle.find_class", "socket.getaddrinfo", "ctypes.dlopen", "os.chmod", "os.chown", "os.putenv"}


class Watch:
    """Records audit events; only the store, Python, the caches and facts about the machine may be accessed."""

    def __init__(self, store: Path) -> None:
        cache, vocabularies = os.environ["TOKENLOOM_CACHE"], os.environ.get("TIKTOKEN_CACHE_DIR", "")
        house = Path(__file__).resolve().parents[2]
        self.writable = (cache,)
        python = (sys.prefix, sys.base_prefix, *sys.path)
        readable = (str(store), cache, vocabularies, str(house), *python, *_ABOUT_MACHINE)
        self.readable = tuple(os.path.realpath(path) for path in readable if path)
        self.is_on = False
        self.seen: list[str] = []
        sys.addaudithook(self._event)

    def _event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and (what := self._problem(event, arguments)):
            self.seen.append(f"{event}: {what}"[:300])

    def _problem(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            path = os.path.realpath(os.fsdecode(arguments[0]))
            return None if self._is_below(path, self.writable if writes else self.readable) else path
        if event in _WRITES and not isinstance(arguments[0], int):  # a descriptor was checked when it was opened
            path = os.path.realpath(os.fsdecode(arguments[0]))
            return None if self._is_below(path, self.writable) else path
        if event == "import":
            top = arguments[0].partition(".")[0]
            return None if top in sys.modules or top in sys.stdlib_module_names else arguments[0]
        if event in ("exec", "compile"):
            name = arguments[0].co_filename if event == "exec" else str(arguments[1])
            return None if self._is_below(os.path.realpath(name), self.readable) or name.startswith("<frozen") else name
        return repr(arguments) if event in _NEVER else None

    def _is_below(self, path: str, roots: tuple[str, ...]) -> bool:
        return any(path == root or path.startswith(root + "/") for root in map(os.path.realpath, roots))


def read_all(reference: str, store: str) -> Counter[str]:
    """Use a version as a reader and the command line do; count the outcomes."""
    ends: Counter[str] = Counter()
    data: list[TokenDataset] = []

    def opened(**options: Any) -> None:
        data.append(TokenDataset(reference, seq_len=16, **options))
        if len(data[-1]):
            data[-1].decode(data[-1][0]["input_ids"])
            next(iter(TokenLoader(data[-1], batch_size=2, seed=0, prefetch=0, rank=0, world_size=1)))

    steps: list[Callable[[], object]] = [
        opened,
        lambda: opened(packing="best_fit"),
        lambda: look.inspect(reference, out=Output()),
        lambda: peek.peek(reference, count=2, chars=40, out=Output()),
        lambda: look.ls(store, out=Output()),
        lambda: look.ls(f"{store}/data", out=Output()),
    ]
    for step in steps:
        try:
            step()
        except TokenloomError as error:
            if f"{store}/data" not in str(error) and not any(part in str(error) for part in ("/versions/", "/tags/")):
                raise AssertionError(f"{type(error).__name__} names no file: {str(error)[:200]}") from error
            ends[type(error).__name__] += 1
        else:
            ends["done"] += 1
    return ends


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything in a JSON value; of long lists and objects the first three items and the last."""
    if path:
        yield path
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else [])
    for key, item in items if len(items) <= 12 else [*items[:3], items[-1]]:
        yield from nodes(item, (*path, key))


def _with(value: Any, path: tuple[Any, ...], key: Any, item: Any) -> Any:
    """Return a copy of a JSON value in which `key`, beside the last of a path, has another item, or is deleted."""
    changed = copy.deepcopy(value)
    parent = reduce(operator.getitem, path[:-1], changed)
    if item is DELETED:
        del parent[key]
    else:
        parent[key] = item
    return changed


def changes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a JSON value with each field replaced, deleted, or added to: (what was done, value)."""
    for path in nodes(value):
        for nasty in NASTY:
            done = "deleted" if nasty is DELETED else repr(nasty)[:60]
            yield f"{path} = {done}", _with(value, path, path[-1], nasty)
        if isinstance(path[-1], str):  # a name of the version's own making
            item = reduce(operator.getitem, path, value)
            for name in TEXTS:
                yield f"{path} also as {name[:60]!r}", _with(value, path, name, item)


def signed(value: Any) -> bytes | None:
    """Return a signed file; None for what JSON in UTF-8 can't hold."""
    try:
        return sign(value)
    except UnicodeEncodeError:
        body = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()[:-1]
        return body + b',"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


class Version:
    """The good version of a store: its files by their path in the dataset, and cases made from them."""

    def __init__(self, folder: Path) -> None:
        self.files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        self.files = {name: data for name, data in self.files.items() if not name.startswith("work/")}
        (self.manifest_path,) = [name for name in self.files if name.endswith("/manifest.json")]
        self.base = self.manifest_path.removesuffix("/manifest.json")
        self.manifest = json.loads(self.files[self.manifest_path])
        del self.manifest["checksum"]

    def cases(self, group: str) -> Iterator[Case]:
        """Yield the cases of a group."""
        yield from getattr(self, f"_{group}")()

    def _manifest(self) -> Iterator[Case]:
        for what, value in changes(self.manifest):
            if data := signed(value):
                yield f"manifest {what}", {self.manifest_path: data}

    def _tokenizer(self) -> Iterator[Case]:
        for name in [name for name in self.manifest["files"] if name.endswith(".json") and "/" in name]:
            for what, value in changes(json.loads(self.files[f"{self.base}/{name}"])):
                yield f"{name} {what}", self._listed(name, json.dumps(value).encode())
        for field in ("path", "ranks", "pattern", "eot", "bos", "kind", "name", "special_tokens", "module"):
            for nasty in [*TEXTS, *NUMBERS, {"a": 2**31}, {"<|endoftext|>": 2**32 - 1}, {"a": -1}, {"": 1}]:
                for without in (False, True):
                    value = copy.deepcopy(self.manifest)
                    value["spec"]["tokenizer"][field] = nasty
                    if without:
                        value["files"] = {k: v for k, v in value["files"].items() if "/" not in k}
                    data = signed(value)
                    assert data is not None
                    yield f"spec.tokenizer.{field} = {nasty!r:.60} {without}", {self.manifest_path: data}

    def _small(self) -> Iterator[Case]:
        """Tag entry and inputs.json."""
        (path,) = [name for name in self.files if name.startswith("tags/latest/")]
        entry = json.loads(self.files[path])
        del entry["checksum"]
        for what, value in changes(entry):
            if data := signed(value):
                yield f"tag {what}", {path: data}
        for what, value in changes(json.loads(self.files[f"{self.base}/inputs.json"])):
            yield f"inputs {what}", self._listed("inputs.json", json.dumps(value).encode())
        for data in (b"", b"[" * 10**6, b"{}", b"[]", b"1" * 5000, b"\xff", b'{"inputs":{}}', b'{"inputs":[1]}'):
            yield f"inputs {data[:20]!r}", self._listed("inputs.json", data)
            body = b'{"a":' + data
            checksum = hashlib.sha256(body).hexdigest().encode()
            yield f"tag {data[:20]!r}", {path: body + b',"checksum":"' + checksum + b'"}'}
            yield f"manifest {data[:20]!r}", {self.manifest_path: body + b',"checksum":"' + checksum + b'"}'}

    def _shard(self) -> Iterator[Case]:
        """The header of a shard, and its document table."""
        name = "train/000000.tok"
        shard = self.files[f"{self.base}/{name}"]
        fixed = struct.Struct("<8sIIIIQQQQQ16s16s")
        fields = list(fixed.unpack_from(shard))
        info = json.loads(shard[fixed.size : fixed.size + fields[4]])
        for what, value in changes(info):
            with contextlib.suppress(UnicodeEncodeError):
                data = canonical_json(value)
                if fixed.size + len(data) + 16 <= fields[2]:
                    yield f"header {what}", self._shard_with(name, [*fields[:4], len(data), *fields[5:]], data)
        for index in range(1, 10):
            for number in (0, 1, 7, 4095, 4096, 8192, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1):
                if number < 2**32 or index >= 5:
                    other = [*fields[:index], number, *fields[index + 1 :]]
                    yield f"header field {index} = {number}", self._shard_with(name, other, canonical_json(info))
        table, rng = self.files[f"{self.base}/train/000000.docs"], random.Random(0)
        for _ in range(400):
            at, byte = rng.randrange(len(table)), bytes([rng.randrange(256)])
            changed = table[:at] + byte + table[at + 1 :] if rng.random() < 0.9 else table[:at]
            yield f"table byte {at} = {byte!r}", {f"{self.base}/train/000000.docs": changed}

    def _shard_with(self, name: str, fields: list[Any], info: bytes) -> dict[str, bytes]:
        shard = self.files[f"{self.base}/{name}"]
        start = struct.unpack_from("<I", shard, 12)[0]
        head = (struct.pack("<8sIIIIQQQQQ16s16s", *fields) + info).ljust(start - 16, b"\0")
        data = head + xxhash.xxh3_128_digest(head) + shard[start:]
        value = copy.deepcopy(self.manifest)
        (entry,) = [entry for entry in value["splits"]["train"]["shards"] if entry["name"] == name]
        entry["sha256"] = hashlib.sha256(data).hexdigest()
        return {f"{self.base}/{name}": data, self.manifest_path: sign(value)}

    def _listed(self, name: str, data: bytes) -> dict[str, bytes]:
        value = copy.deepcopy(self.manifest)
        value["files"][name] = hashlib.sha256(data).hexdigest()
        return {f"{self.base}/{name}": data, self.manifest_path: sign(value)}


def run(watch: Watch, version: Version, cases: list[Case], root: str) -> tuple[Counter[str], list[str]]:
    """Read the good version with each case's files in place of its own; return how it ended, and what was wrong."""
    filesystem, folder = fsspec.core.url_to_fs(f"{root}/data")
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for what, files in cases:
        for name, data in files.items():
            filesystem.pipe_file(f"{folder}/{name}", data)
        watch.seen.clear()
        signal.alarm(_SECONDS if files else 120)  # the good version comes first, and imports torch
        try:
            watch.is_on = True
            with contextlib.redirect_stdout(io.StringIO()) as out:
                ends += read_all(f"{root}/data", root)
            if "\x1b" in out.getvalue():
                wrong.append(f"{what}: control characters were printed")
        except BaseException as error:  # noqa: BLE001  (a panic of a native library is not an Exception)
            wrong.append(f"{what}: {type(error).__name__}: {str(error)[:300]}")
        finally:
            watch.is_on = False
            signal.alarm(0)
        wrong += [f"{what}: {seen}" for seen in watch.seen]
        for name in files:
            filesystem.pipe_file(f"{folder}/{name}", version.files[name])
    return ends, wrong


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not done after {_SECONDS} s")


def main(store: str, place: str, most: int, groups: list[str]) -> None:
    """Run up to `most` cases of each group, chosen by a fixed seed.

    Args:
        store: holds the version.
        place: "local" to read it there, "remote" to read a copy in a remote store.
        most: how many cases of a group run.
        groups: names of groups of cases.
    """
    version, root = Version(Path(store) / "data"), store
    if place == "remote":
        root = f"{SCHEME}://hostile"
        for name, data in version.files.items():
            fsspec.filesystem("memory").pipe_file(f"/hostile/data/{name}", data)
    signal.signal(signal.SIGALRM, _too_long)
    watch = Watch(Path(store))
    good, wrong = run(watch, version, [("nothing", {})], root)  # imports the modules that reading needs
    assert set(good) == {"done"}, (good, wrong)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for group in groups:
        cases = list(version.cases(group))
        chosen = random.Random(group).sample(cases, min(most, len(cases)))
        ends, wrong = run(watch, version, chosen, root)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
        print(json.dumps({"group": group, "cases": len(chosen), "ends": ends, "wrong": wrong, "grown_mb": grown}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
