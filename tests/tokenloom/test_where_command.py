"""`tokenloom where`: each answer, by content, text, and path and row; and `tokenloom trace`, its inverse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tests.builders.datasets import build, make_spec, write_jsonl, write_parquet
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, upload
from tokenloom.cli.main import main
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.mixture import Mixture
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.sources import base

Run = Callable[..., dict[str, Any]]
_TEXTS = [f"text number {i}, " + "again and " * (i % 9) for i in range(60)]
_EXCLUDED = "this text was removed"
_LOADER = ("--seq-len", "16", "--batch-size", "2", "--world-size", "3", "--seed", "5")


@dataclass(frozen=True)
class Built:
    """A version, its spec and the folder of its sources."""

    reference: str
    spec: BuildSpec
    folder: Path

    @property
    def version_folder(self) -> Path:
        store, _, version = self.reference.partition("@")
        return Path(store) / "versions" / version


def _content(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


def _offsets(path: Path) -> list[int]:
    """Return the byte offset of each line."""
    lines = path.read_bytes().splitlines(keepends=True)
    return [sum(map(len, lines[:i])) for i in range(len(lines))]


def _write_sources(folder: Path) -> list[dict[str, Any]]:
    """Write a parquet file with a filter, and JSON lines with duplicates, an id, a bad row and an excluded text."""
    folder.mkdir()
    write_parquet(folder / "news.parquet", _TEXTS, group_rows=25)
    rows = [{"text": text, "key": f"k{i}"} for i, text in enumerate([*_TEXTS[:3], "only here", "x", _EXCLUDED])]
    lines = [*map(json.dumps, rows), '{"text": 7, "key": "bad"}', json.dumps({"text": "last", "key": "k9"})]
    (folder / "lines.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "exclude.txt").write_text(json.dumps(_EXCLUDED) + "\n")
    return [
        {"kind": "parquet", "path": str(folder / "*.parquet"), "name": "news", "filter": "number != 4"},
        {"kind": "jsonl", "path": str(folder / "lines.jsonl"), "name": "lines", "id": "key"},
    ]


def _build(folder: Path, **documents: Any) -> Built:
    sources = _write_sources(folder / "in")
    rules = {"min_chars": 2, "on_error": "skip", "exclude": str(folder / "in" / "exclude.txt")} | documents
    spec = make_spec(folder / "store", sources, documents=rules, shard_tokens=900, splits={"train": 0.7, "test": 0.3})
    return Built(f"{spec.store}/data@{build(spec).version}", spec, folder / "in")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return _build(tmp_path_factory.mktemp("where"))


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A version that keeps duplicates."""
    return _build(tmp_path_factory.mktemp("copies"), deduplicate=False)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; return its JSON. Without another code, 0 is that of a lookup that finds documents, 3 of others."""

    def run_json(*arguments: object, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        ended = main([*map(str, arguments), "--json"])
        value: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert ended == (code or (0 if value.get("documents", True) else 3))
        return value

    return run_json


@pytest.fixture
def moved(built: Built, tmp_path: Path) -> Built:
    """A copy of the store and of its sources, which a test may change."""
    shutil.copytree(built.folder, tmp_path / "in")
    shutil.copytree(built.folder.parent / "store", tmp_path / "store")
    return Built(f"{tmp_path}/store/{built.reference.rpartition('/')[2]}", built.spec, tmp_path / "in")


def _by_row(run: Run, built: Built, path: str, row: int, *options: object, code: int = 0) -> dict[str, Any]:
    return run("where", built.reference, "--path", path, "--row", row, *options, code=code)


# ---- what is found


def test_every_row_of_a_source_is_found_where_its_text_lies(built: Built, run: Run) -> None:
    for row, text in enumerate(_TEXTS):
        if row == 4:  # filtered
            continue
        found = _by_row(run, built, "news.parquet", row)
        assert (found["status"], found["reference"]) == ("found", built.reference)
        (document,) = found["documents"]
        expected = {"source": "news", "path": "news.parquet", "row": row, "content": _content(text), "id": None}
        assert document == document | expected | {"num_tokens": len(text.encode()) + 1}
        if row % 5 == 0:
            assert run("where", built.reference, "--content", _content(text).upper())["documents"] == [document]


def test_rows_of_lines_are_byte_offsets_and_their_ids_are_shown(built: Built, run: Run) -> None:
    offset = _offsets(built.folder / "lines.jsonl")[3]
    (document,) = _by_row(run, built, "lines.jsonl", offset)["documents"]
    assert (document["content"], document["id"]) == (_content("only here"), "k3")
    found = _by_row(run, built, "lines.jsonl", 3)
    assert found["status"] == "not_found"
    assert found["reason"] == "lines.jsonl has no row 3"


def test_a_text_is_found_though_an_editor_added_a_line_end(built: Built, run: Run, tmp_path: Path) -> None:
    for data in (b"only here", b"only here\n", b"only here\r\n"):
        (tmp_path / "text").write_bytes(data)
        found = run("where", built.reference, "--text", tmp_path / "text")
        assert (found["status"], found["documents"][0]["content"]) == ("found", _content("only here"))
        assert found["content"] == _content("only here")
    for text in ("nowhere", " only here"):  # every other byte counts
        (tmp_path / "text").write_text(text)
        found = run("where", built.reference, "--text", tmp_path / "text")
        assert (found["status"], found["documents"], found["content"]) == ("not_found", [], _content(text))
    (tmp_path / "text").write_text("x\n")
    found = run("where", built.reference, "--text", tmp_path / "text")
    assert (found["status"], found["reason"]) == ("filtered", "it has 1 character, and documents.min_chars is 2")
    (tmp_path / "text").write_bytes(b"caf\xe9")
    error = run("where", built.reference, "--text", tmp_path / "text", code=1)["error"]
    assert "not UTF-8 at byte 3" in error["message"]


def test_kept_copies_are_all_found_by_content_and_each_by_its_row(copies: Built, run: Run) -> None:
    found = run("where", copies.reference, "--content", _content(_TEXTS[1]))["documents"]
    offset = _offsets(copies.folder / "lines.jsonl")[1]
    assert {(each["path"], each["row"]) for each in found} == {("news.parquet", 1), ("lines.jsonl", offset)}
    for path, row in (("news.parquet", 1), ("lines.jsonl", offset)):
        (document,) = _by_row(run, copies, path, row)["documents"]
        assert (document["path"], document["row"]) == (path, row)
        assert document in found


# ---- why a row is in no shard


def test_a_row_that_is_in_no_shard_is_answered_with_why(built: Built, run: Run) -> None:
    offsets = _offsets(built.folder / "lines.jsonl")
    duplicate = _by_row(run, built, "lines.jsonl", offsets[2])
    assert duplicate["status"] == "duplicate"
    assert duplicate["reason"] == "its text was kept from news: news.parquet, row 2"
    assert duplicate["documents"] == _by_row(run, built, "news.parquet", 2)["documents"]
    assert duplicate["content"] == _content(_TEXTS[2])
    answers = {
        ("news.parquet", 4): ("filtered", "the filter of the source news leaves it out"),
        ("lines.jsonl", offsets[4]): ("filtered", "it has 1 character, and documents.min_chars is 2"),
        ("lines.jsonl", offsets[5]): ("excluded", f"documents.exclude lists it now: {built.folder}/exclude.txt"),
        ("lines.jsonl", offsets[6]): (
            "quarantined",
            f"quarantine.jsonl lists it as not_text: {base.REASONS['not_text']}",
        ),
        ("news.parquet", 60): ("not_found", "news.parquet has no row 60"),
        ("news.parquet", 10**12): ("not_found", f"news.parquet has no row {10**12}"),
    }
    for (path, row), (status, reason) in answers.items():
        found = _by_row(run, built, path, row)
        assert (found["status"], found["reason"], found["documents"]) == (status, reason, [])
    for content, status in ((_content(_EXCLUDED), "excluded"), ("0" * 32, "not_found")):
        assert run("where", built.reference, "--content", content)["status"] == status


def test_rows_of_a_source_with_take_have_the_path_of_its_first_file(tmp_path: Path, run: Run) -> None:
    for number in range(2):
        write_parquet(tmp_path / "set" / f"train-0000{number}-of-00002.parquet", [f"{number} {i}" for i in range(5)])
    source = {"kind": "huggingface", "name": str(tmp_path / "set"), "take": 8}
    spec = make_spec(tmp_path / "store", [source], splits={"train": 1.0})
    reference = f"{spec.store}/data@{build(spec).version}"
    first, second = (f"train-0000{number}-of-00002.parquet" for number in range(2))
    found = run("where", reference, "--path", first, "--row", 6)
    assert (found["status"], found["documents"][0]["content"]) == ("found", _content("1 1"))
    found = run("where", reference, "--path", second, "--row", 6)
    assert found["reason"] == f"its text was kept from huggingface-0: {first}, row 6"


def test_a_path_that_is_no_input_is_refused_with_one_that_is_close(built: Built, run: Run) -> None:
    for path in ("new.parquet", f"{built.folder}/news.parquet"):
        error = _by_row(run, built, path, 0, code=2)["error"]["message"]
        assert error.endswith("Did you mean news.parquet?")
    error = _by_row(run, built, "news.parquet", 0, "--source", "line", code=2)["error"]["message"]
    assert error == "--source: no source is named 'line'. Did you mean lines? Allowed: news, lines"


def test_a_path_of_two_sources_needs_the_name_of_one(tmp_path: Path, run: Run) -> None:
    sources = []
    for name in ("a", "b"):
        path = write_jsonl(tmp_path / name / "in.jsonl", [f"of {name}", "of both"])
        sources.append({"kind": "jsonl", "path": str(path), "name": name})
    spec = make_spec(tmp_path / "store", sources)
    reference = f"{spec.store}/data@{build(spec).version}"
    error = run("where", reference, "--path", "in.jsonl", "--row", 0, code=2)["error"]["message"]
    assert "several sources have this path: a, b; give one with --source" in error
    found = run("where", reference, "--path", "in.jsonl", "--row", 0, "--source", "b")
    assert found["documents"][0]["content"] == _content("of b")


# ---- sources that can't be read


def test_rows_of_a_source_that_is_gone_or_has_changed_are_found_in_the_tables(moved: Built, run: Run) -> None:
    spec = moved.folder.parent / "moved.yaml"
    value = json.loads(moved.spec.model_dump_json(exclude={"runner", "credentials"}))
    spec.write_text(
        json.dumps(value).replace(str(getattr(moved.spec.sources[0], "path", "").rpartition("/")[0]), str(moved.folder))
    )
    assert _by_row(run, moved, "news.parquet", 7, "--spec", spec)["content"]
    write_parquet(moved.folder / "news.parquet", ["another", *_TEXTS[1:]])
    found = _by_row(run, moved, "news.parquet", 7, "--spec", spec)
    assert (found["status"], found["documents"][0]["content"]) == ("found", _content(_TEXTS[7]))
    unknown = _by_row(run, moved, "news.parquet", 4, "--spec", spec)
    assert unknown["status"] == "not_found"
    assert "can't be read:" in unknown["reason"] and "it has changed since the build" in unknown["reason"]
    (moved.folder / "news.parquet").unlink()
    assert "no file matches" in _by_row(run, moved, "news.parquet", 4, "--spec", spec)["reason"]
    value["seed"] = 9
    spec.write_text(json.dumps(value))
    error = run("where", moved.reference, "--path", "news.parquet", "--row", 4, "--spec", spec, code=2)["error"]
    assert "the version was built from another spec, which differs in seed" in error["message"]


def test_a_version_without_build_json_answers_from_its_tables(moved: Built, run: Run) -> None:
    (moved.version_folder / "build.json").unlink()
    assert _by_row(run, moved, "news.parquet", 7)["documents"][0]["content"] == _content(_TEXTS[7])
    found = _by_row(run, moved, "news.parquet", 4)
    assert found["status"] == "not_found"
    assert "build.json does not say where it is" in found["reason"] and "--spec names a spec" in found["reason"]
    assert run("where", moved.reference, "--content", _content(_TEXTS[7]))["status"] == "found"


def test_a_damaged_document_table_is_an_error_and_not_a_missing_document(moved: Built, run: Run) -> None:
    (document,) = run("where", moved.reference, "--content", _content(_TEXTS[7]))["documents"]
    table = moved.version_folder / document["shard"].replace(".tok", ".docs")
    table.write_bytes(table.read_bytes()[:-40])
    error = run("where", moved.reference, "--content", _content(_TEXTS[7]), code=1)["error"]
    assert str(table) in error["message"]


def test_a_transform_runs_only_if_the_user_names_the_spec(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "upper_case.py").write_text("def upper(text):\n    return text.upper() if text != 'drop' else None\n")
    monkeypatch.syspath_prepend(tmp_path)
    source = {"kind": "jsonl", "path": str(write_jsonl(tmp_path / "in.jsonl", ["one", "drop"]))}
    transform = {"function": "upper_case:upper", "version": "1"}
    spec = make_spec(tmp_path / "store", [source], documents={"transform": transform})
    reference = f"{spec.store}/data@{build(spec).version}"
    path = tmp_path / "spec.yaml"
    path.write_text(spec.model_dump_json(exclude={"runner", "credentials"}))
    (tmp_path / "text").write_text("one")
    assert "give --spec" in run("where", reference, "--text", tmp_path / "text", code=2)["error"]["message"]
    found = run("where", reference, "--text", tmp_path / "text", "--spec", path)
    assert found["documents"][0]["content"] == _content("ONE")
    dropped = run("where", reference, "--path", "in.jsonl", "--row", _offsets(tmp_path / "in.jsonl")[1], "--spec", path)
    assert (dropped["status"], dropped["reason"]) == ("filtered", "documents.transform leaves it out")


# ---- steps


def _store_of(built: Built) -> str:
    return built.reference.partition("@")[0].rpartition("/")[0]


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_trace_shows_the_document_in_each_step_that_where_names(built: Built, run: Run, packing: str) -> None:
    loader = (*_LOADER, "--packing", packing)
    options = ("--epoch", "1", "--epochs", "2")
    for row in (0, 7, 33):
        found = run("where", built.reference, "--content", _content(_TEXTS[row]), *loader, *options)
        split = found["documents"][0]["split"]
        assert {step["epoch"] for step in found["steps"]} == {1, 2}
        for step in found["steps"]:
            place = ("--step", step["step"], "--rank", step["rank"], "--split", split)
            samples = run("trace", built.reference, *place, *loader)["samples"]
            sample = samples[step["index"]]
            assert sample["sample"] == step["sample"]
            assert _content(_TEXTS[row]) in {document["content"] for document in sample["documents"]}
            alone = run(
                "trace", built.reference, "--sample", step["sample"], "--split", split, *loader[:2], *loader[-2:]
            )
            assert alone["samples"][0]["documents"] == sample["documents"]


def test_the_short_last_step_of_a_loader_that_pads_it_can_be_traced(built: Built, run: Run) -> None:
    data = TokenDataset(built.reference, seq_len=16)
    batch_size = len(data) - 1
    loader = TokenLoader(data, batch_size, rank=0, world_size=1, seed=5, num_epochs=1, drop_last=False)
    given = ("--step", 1, "--seq-len", 16, "--batch-size", batch_size, "--seed", 5, "--num-epochs", 1)
    assert "step 1 is past the last epoch" in run("trace", built.reference, *given, code=2)["error"]["message"]
    assert run("trace", built.reference, *given, "--pad-last")["samples"] == loader.trace(1)["samples"]


def test_a_state_says_what_to_trace_and_what_a_checkpoint_has_seen(built: Built, run: Run, tmp_path: Path) -> None:
    data = TokenDataset(built.reference, seq_len=16, packing="document_padded")
    loader = TokenLoader(data, 2, seed=3)
    for _ in range(5):
        next(loader)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    state = ("--state", tmp_path / "state.json", "--batch-size", 2)
    dataset = built.reference.partition("@")[0]
    assert run("trace", dataset, *state, "--step", "+0")["samples"] == loader.trace(5)["samples"]
    assert run("trace", "--store", _store_of(built), *state, "--step", 4)["samples"] == loader.trace(4)["samples"]
    for step, seen in ((4, True), (5, False)):
        content = loader.trace(step)["samples"][1]["documents"][0]["content"]
        steps = run("where", built.reference, "--content", content, *state)["steps"]
        (here,) = [each for each in steps if (each["step"], each["index"]) == (step, 1)]
        assert here["seen"] is seen


def test_a_state_of_a_mixture_names_its_members(built: Built, copies: Built, run: Run, tmp_path: Path) -> None:
    members = {
        "a": (TokenDataset(built.reference, seq_len=16), 1),
        "b": (TokenDataset(copies.reference, seq_len=16), 2),
    }
    loader = TokenLoader(Mixture(members), 4)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    state = ("--state", tmp_path / "state.json", "--batch-size", 4)
    stores = ("--store", f"a={_store_of(built)}", "--store", _store_of(copies))
    found = run("trace", *state, *stores, "--step", "+3")
    assert (found["reference"], found["samples"]) == (None, loader.trace(3)["samples"])
    sample = found["samples"][1]
    reference = {"a": built, "b": copies}[sample["member"]].reference
    content = sample["documents"][0]["content"]
    steps = run("where", reference, "--content", content, *state, *stores)["steps"]
    assert (3, 0, 1, sample["member"]) in {
        (each["step"], each["rank"], each["index"], each["member"]) for each in steps
    }


def test_a_remote_store_gives_the_same_answers(
    built: Built, copies: Built, run: Run, s3_url: str, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    for name, local in (("built", built), ("copies", copies)):
        upload(s3_url, Path(local.reference.partition("@")[0]), f"{name}/data")
        remote = f"s3://{BUCKET}/{name}/data@{local.reference.rpartition('@')[2]}"
        for what in (("--content", _content(_TEXTS[7])), ("--path", "news.parquet", "--row", "7")):
            arguments = (*what, *_LOADER, "--packing", "best_fit")
            expected = run("where", local.reference, *arguments) | {"reference": remote}
            assert run("where", remote, *arguments) == expected
        step = ("--step", "3", *_LOADER, "--split", "test")
        assert run("trace", remote, *step)["samples"] == run("trace", local.reference, *step)["samples"]
    assert not [path for path in tmp_path.rglob("*.tok") if path.stat().st_size > 0]


# ---- what is refused, and what people see


@pytest.mark.filterwarnings("default:.*no samples")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("where", "--content", "abc"), "--content 'abc': write 32 hexadecimal digits"),
        (("where", "--path", "news.parquet"), "--path needs --row"),
        (("where", "--content", "CONTENT", "--seq-len", "8"), "--batch-size is required"),
        (("where", "--content", "CONTENT", *_LOADER[2:], "--seq-len", "100000"), "and seq_len=100000 cut none from"),
        (("where", "--content", "CONTENT", *_LOADER, "--epoch", str(2**61)), "past the last position of a stream"),
        (("trace", "--step", "+1", *_LOADER), "--step +1: a step after a state needs --state"),
        (("trace", "--sample", "99999", "--seq-len", "16"), "--sample 99999: the split has "),
        (
            ("trace", "--sample", "1", *_LOADER),
            "--batch-size: --sample counts the samples of the split itself; omit it",
        ),
    ],
)
def test_arguments_that_are_missing_or_out_of_range_are_usage_errors(
    built: Built, run: Run, arguments: tuple[str, ...], message: str
) -> None:
    command, *rest = (_content(_TEXTS[1]) if each == "CONTENT" else each for each in arguments)
    assert message in run(command, built.reference, *rest, code=2)["error"]["message"]


def test_states_that_do_not_fit_are_usage_errors(built: Built, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state: dict[str, Any] = dict(TokenLoader(TokenDataset(built.reference, seq_len=16), 2).state_dict())
    arguments = ("trace", built.reference, "--state", path, "--step", "+0", "--batch-size", 2)
    assert "state.json: No such file" in run(*arguments, code=1)["error"]["message"]
    path.write_bytes(b"\x80\x02 torch")
    assert "write json.dumps(loader.state_dict()) into it" in run(*arguments, code=2)["error"]["message"]
    path.write_text("{}")
    assert "not a loader state" in run(*arguments, code=2)["error"]["message"]
    path.write_text(json.dumps(state))
    assert "--seed: --state determines it; omit it" in run(*arguments, "--seed", 1, code=2)["error"]["message"]
    without = ("trace", *arguments[2:])
    assert "--store: give the store of the dataset, or REF" in run(*without, code=2)["error"]["message"]
    path.write_text(json.dumps(state | {"stream": state["stream"] | {"order_version": 2}}))
    assert "order_version is 2 in the state, 1 in the loader" in run(*arguments, code=2)["error"]["message"]


def test_people_see_text_rows_and_steps(built: Built, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["where", built.reference, "--content", _content(_TEXTS[7]), *_LOADER]) == 0
    shown = capsys.readouterr().out
    assert f"news: news.parquet, row 7, content {_content(_TEXTS[7])}" in shown
    assert "epoch  step  rank  index  position  sample" in shown
    assert main(["trace", built.reference, "--step", "0", "--rank", "1", *_LOADER, "--chars", "9"]) == 0
    shown = capsys.readouterr().out
    assert "step 0 of rank 1 of 3, 2 samples" in shown and "row " in shown
    (tmp_path / "text").write_text("nowhere")
    assert main(["where", built.reference, "--text", str(tmp_path / "text")]) == 3
    assert f"no document has the content {_content('nowhere')}" in capsys.readouterr().out
