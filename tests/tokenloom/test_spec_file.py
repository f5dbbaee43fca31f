"""Specs from YAML and --set: every error names file, line, key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.memory_objects import SCHEME
from tests.servers.web_server import web_server
from tests.tasks.test_globs import put_all
from tokenloom.cli.commands.start import starter_spec
from tokenloom.errors import InputError, SpecError
from tokenloom.flows.build_dataset import with_absolute_paths
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.loading import load_spec
from tokenloom.spec.syntax import escaped, first_wildcard, literal
from tokenloom.tasks.sources import make_reader

BASE = """\
dataset: news
store: ./store
sources:
  - {kind: parquet, path: data/*.parquet}
  - kind: text
    path: a.txt
"""
WHOLE = BASE + "tokenizer: byte\n"


def load(folder: Path, text: str, *overrides: str) -> BuildSpec:
    """Write a spec file and load it."""
    path = folder / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    if not any("tokenizer" in written for written in (text, *overrides)):  # it is required
        overrides = ("tokenizer={kind: byte}", *overrides)
    return load_spec(path, overrides)


def refusal(folder: Path, text: str, *overrides: str) -> str:
    """Return the message that refuses a spec file, without the name of its folder."""
    with pytest.raises(SpecError) as caught:
        load(folder, text, *overrides)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seq_len: 2048\n", "spec.yaml:7: seq_len: unknown key (value 2048). Allowed: dataset"),
        (
            "documents:\n  min_char: 5\n",
            "spec.yaml:8: documents.min_char: unknown key (value 5). Did you mean min_chars? Allowed: min_chars, max",
        ),
        ("    text: x\n", "spec.yaml:7: sources.1.text: unknown key (value 'x'). Allowed: path, name, leave_out, kind"),
        ("seed: -1\n", "spec.yaml:7: seed: Input should be greater than or equal to 0; got -1"),
        ("tokenizer: gpt4\n", ":7: tokenizer: not the name of a tokenizer. gpt-4 has the encoding cl100k_base."),
        ("tokenizer: meta-llama/Llama-3\n", "kind: huggingface, name: org/model"),
        (
            "tokenizer:\n  name: gpt2\n  kind: tiktokn\n",
            "spec.yaml:7: tokenizer: Input tag 'tiktokn' found using 'kind' does not match any of the expected tags:",
        ),
        ("  - {path: x}\n", "spec.yaml:7: sources.2: Unable to extract tag using discriminator 'kind'"),
        ("tokenizer: {kind: huggingface, name: ./m}\n", ":7: tokenizer.name: String should match pattern"),
        ("tokenizer: {kind: tiktoken}\n", "spec.yaml:7: tokenizer: give the name of a tiktoken encoding (gpt2)"),
        ("documents:\n  min_chars: 1\n  on: x\n", "spec.yaml:7: documents.1: Keys should be strings; got True"),
        ("splits: 5\n", "spec.yaml:7: splits: must be a mapping of names to shares, such as {train: 0.9, test: 0.1}"),
        ("seed: 1\nseed: 2\n", "spec.yaml:8: seed is given twice; remove one"),
        ("seed: [1\n", "not valid YAML: expected ',' or ']', but got '<stream end>'; quote values that contain"),
        ("\tseed: 1\n", "spec.yaml:7: not valid YAML: found character '\\t' that cannot start any token"),
        ("seed: !!python/object/apply:os.system [ls]\n", "spec.yaml:7: not valid YAML: could not determine"),
        ("splits: " + "[" * 5000, "not valid YAML: nested too deep"),
        ("documents: &a [*a]\n", "not valid YAML: aliases (*name) are not supported; write"),
        ("a\0b", "not valid YAML"),
    ],
)
def test_what_is_wrong_in_a_file_is_reported_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    assert message in refusal(tmp_path, BASE + text)


def test_all_errors_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    text = BASE.replace("dataset: news\n", "") + "seed: -1\nnope: 1\ndocuments: {min_chars: x}\n"
    lines = refusal(tmp_path, text).splitlines()
    assert len(lines) == 4
    assert "spec.yaml: dataset: Field required" in lines
    assert "a spec is a mapping of keys" in refusal(tmp_path, "")


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml: no such file; `tokenloom init .*none\.yaml` writes"):
        load_spec(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="can't be read: Is a directory"):
        load_spec(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SpecError, match=r"bytes\.yaml: a spec must be UTF-8; byte 0 is not\. Save it as"):
        load_spec(tmp_path / "bytes.yaml")


def test_a_password_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, BASE.replace("./store", "s3://me:hush@bucket/x"))
    assert (caught.value.__suppress_context__, caught.value.__cause__) == (True, None)  # they hold the value
    assert "spec.yaml:2: store: a URL must not contain a password" in str(caught.value)
    assert "hush" not in refusal(tmp_path, BASE + f"x: s3://me:hush{'h' * 200}@bucket\n")


# Overrides


def test_overrides_replace_and_add_values_at_any_depth(tmp_path: Path) -> None:
    spec = load(
        tmp_path,
        BASE,
        "seed=3",
        "documents.min_chars=5",
        "documents.deduplicate=false",
        "sources.0.text=body",
        "splits={train: 0.9, test: 0.1}",
        "tokenizer={kind: tiktoken, name: gpt2}",
        "tokenizer.bos='<|endoftext|>'",
        "seed=4",
    )
    assert spec.seed == 4
    assert (spec.documents.min_chars, spec.documents.deduplicate) == (5, False)
    assert spec.sources[0].model_dump()["text"] == "body"
    assert spec.split_shares() == [("train", 0.9), ("test", 0.1)]
    assert spec.tokenizer.model_dump(exclude_defaults=True) == {"name": "gpt2", "bos": "<|endoftext|>"}


@pytest.mark.parametrize("overrides", [(), ("tokenizer=gpt2",)])
def test_an_override_sets_a_key_of_a_tokenizer_in_its_short_form(overrides: tuple[str, ...], tmp_path: Path) -> None:
    text = BASE + ("" if overrides else "tokenizer: gpt2\n")
    long = load(tmp_path, BASE + "tokenizer: {kind: tiktoken, name: gpt2, backend: reference}\n")
    assert load(tmp_path, text, *overrides, "tokenizer.backend=reference").tokenizer == long.tokenizer
    assert load(tmp_path, BASE + "tokenizer: gpt2\n").tokenizer != long.tokenizer


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "--set: write --set key=value"),
        ("seed=[", "--set seed=[: seed: Input should be a valid integer"),
        ("documents.nope=1", "--set documents.nope=1: documents.nope: unknown key (value 1). Allowed: min_chars"),
        ("sources.2.path=x", "--set sources.2.path=x: the spec has no sources.2"),
        ("dataset.x.y=1", "--set dataset.x.y=1: the spec has no dataset.x.y"),
        ("tokenizer=", "--set tokenizer=: tokenizer: Input should be a valid dictionary"),
        ("dataset=", "--set dataset=: dataset: Input should be a valid string; got no value"),
    ],
)
def test_a_bad_override_is_reported_as_written(override: str, message: str, tmp_path: Path) -> None:
    assert message in refusal(tmp_path, BASE, override)


def test_an_override_inside_a_source_is_blamed_with_the_line_of_the_source(tmp_path: Path) -> None:
    overrides = ("sources.0.kind=csv", "sources.0.columns=[a]", "seed=3")
    place = "spec.yaml:4 with --set sources.0.kind=csv --set sources.0.columns=[a]"
    assert refusal(tmp_path, BASE, *overrides).startswith(f"{place}: sources.0: columns names the fields of files with")
    spec = load(tmp_path, BASE + "tokenizer: byte\n", "sources.1.path=other.txt")
    assert spec.source_place("parquet-0") == f"{tmp_path}/spec.yaml:4"
    assert spec.source_place("text-1") == f"{tmp_path}/spec.yaml:5 with --set sources.1.path=other.txt"


# Paths


def test_paths_start_from_the_file_and_paths_of_overrides_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    plain = load(tmp_path / "specs", BASE)
    data = str(tmp_path / "specs" / "data/*.parquet")
    assert [path for _, path in plain.paths()] == [f"{tmp_path}/specs/store", data, f"{tmp_path}/specs/a.txt"]
    typed = load(tmp_path / "specs", BASE, "store=other", "sources.1.path=b.txt")
    assert [path for _, path in typed.paths()] == [f"{tmp_path}/here/other", data, f"{tmp_path}/here/b.txt"]
    builder = BASE.replace("kind: parquet, path: data/*.parquet", "kind: huggingface, name: json")
    source = {"kind": "huggingface", "name": "json", "data_files": "c.json"}
    for overrides in (["sources.0.data_files=c.json"], [f"sources.0={source}"], [f"sources=[{source}]"]):
        typed = load(tmp_path / "specs", builder, *overrides)
        assert dict(typed.paths())["sources.0.data_files"] == str(tmp_path / "here" / "c.json")
    typed = load(tmp_path / "specs", BASE, "tokenizer={kind: huggingface, path: t.json}", "documents={exclude: x.txt}")
    assert dict(typed.paths())["tokenizer.path"] == str(tmp_path / "here" / "t.json")
    assert dict(typed.paths())["documents.exclude"] == str(tmp_path / "here" / "x.txt")
    relative = load_spec(Path("../specs/spec.yaml"), ["tokenizer={kind: byte}"])
    assert relative.store == f"{tmp_path}/specs/store"
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(tmp_path / "far" / "away")
    linked = load(tmp_path / "here" / "link", BASE.replace("./store", "../store"))
    assert Path(linked.store).resolve() == tmp_path / "far" / "store"


def write_to_memory(url: str, text: str) -> None:
    """Write a file to fsspec's memory file system, which is an object store here."""
    fsspec.filesystem("memory").pipe_file(f"/{url.partition('://')[2]}", text.encode())


def test_paths_of_a_spec_at_a_url_start_from_the_folder_of_the_url(tmp_path: Path) -> None:
    write_to_memory(f"{SCHEME}://corpora/specs/news.yaml", WHOLE.replace("data/*", "../data/*"))
    spec = load_spec(f"{SCHEME}://corpora/specs/news.yaml", ["store=out"], tmp_path)
    assert dict(spec.paths()) == {
        "store": str(tmp_path / "out"),
        "sources.0.path": f"{SCHEME}://corpora/data/*.parquet",
        "sources.1.path": f"{SCHEME}://corpora/specs/a.txt",
    }


def test_errors_of_a_spec_at_a_url_name_the_url_and_the_line() -> None:
    url = f"{SCHEME}://corpora/specs/wrong.yaml"
    write_to_memory(url, WHOLE + "sed: 1\n")
    with pytest.raises(SpecError, match=rf"^{url}:8: sed: unknown key"):
        load_spec(url)
    write_to_memory(url, WHOLE.replace("./store", "../../../store"))
    with pytest.raises(SpecError, match=rf"'\.\./\.\./\.\./store' leaves {SCHEME}://corpora/specs, the folder that it"):
        load_spec(url)
    with pytest.raises(SpecError, match=rf"^{SCHEME}://corpora/none\.yaml: no such file; check the URL$"):
        load_spec(f"{SCHEME}://corpora/none.yaml")


def test_the_query_of_a_web_address_is_not_part_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "news.yaml").write_text(WHOLE)
    with web_server(tmp_path) as (url, _):
        spec = load_spec(f"{url}/specs/news.yaml?branch=a/b")
    assert spec.store == f"{url}/specs/store"


def test_the_starter_spec_is_valid_and_lists_the_defaults(tmp_path: Path) -> None:
    spec, plain = load(tmp_path, starter_spec()), load(tmp_path, BASE)
    for name in ("documents", "splits", "seed", "shard_tokens"):
        assert getattr(spec, name) == getattr(plain, name)


# A folder is no pattern, whatever its name.

_NAMES = ["exp[1]", "lr=[0.1,0.2]", "what?", "*", "a[!b]", "[]", "[[]"]
_SIBLINGS = ["exp1", "lr=0", "whatX", "ac", "["]


def files_of(spec: BuildSpec) -> list[tuple[str, str]]:
    """Return the path and URL of each file of the first source."""
    source = spec.sources[0]
    reader = make_reader(source.reading_options() | {"max_bytes": 1})
    return [(file.path, file.url) for file in reader.files(getattr(source, "path", ""))]


@pytest.mark.parametrize("kind", ["jsonl", "arrow", "json"])
@pytest.mark.parametrize("start", ["spec", "set", "home", "worker"])
def test_only_what_the_user_wrote_is_a_pattern(
    start: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, fields = ("data_files", "kind: huggingface, name: json") if kind == "json" else ("path", f"kind: {kind}")
    for name in [*_NAMES, *_SIBLINGS]:
        (tmp_path / name / "d[1]").mkdir(parents=True)
        for file in ("a.jsonl", "b.jsonl", "d[1]/a.jsonl"):
            (tmp_path / name / file).write_text('{"text": "one"}\n')
    for name in _NAMES:
        folder = tmp_path / name
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HOME" if start == "home" else "TOKENLOOM_HOME", str(folder))
        for path, wanted in {"[a]*.jsonl": ["a.jsonl"], "*.jsonl": ["a.jsonl", "b.jsonl"]}.items():
            written = f"~/{path}" if start == "home" else path
            text = f"dataset: d\nstore: st\ntokenizer: byte\nsources: [{{{fields}, {key}: '{written}'}}]\n"
            if start == "worker":
                spec = with_absolute_paths(BuildSpec.model_validate(yaml.safe_load(text)))
            else:
                spec = load(folder, text, *([f"sources.0.{key}={path}"] if start == "set" else []))
            assert files_of(spec) == [(name, f"{folder}/{name}") for name in wanted]


def test_a_folder_of_a_url_is_no_pattern(s3_url: str, s3_proxy: object) -> None:
    root = put_all(s3_url, *(f"{name}/{file}" for name in [*_NAMES, *_SIBLINGS] for file in ("a.jsonl", "b.jsonl")))
    for name in _NAMES:
        for path, wanted in {"a.jsonl": ["a.jsonl"], "*.jsonl": ["a.jsonl", "b.jsonl"], "**/b*": ["b.jsonl"]}.items():
            spec = BuildSpec.model_validate(
                {"dataset": "d", "store": "st", "tokenizer": "byte", "sources": [{"kind": "jsonl", "path": path}]}
            ).resolve(f"{root}/{name}")
            assert files_of(spec) == [(file, f"{root}/{name}/{file}") for file in wanted]


def test_a_folder_that_the_package_would_take_for_a_pattern_is_refused(tmp_path: Path) -> None:
    (tmp_path / "exp[1]").mkdir()
    spec = load(tmp_path, "dataset: d\nstore: st\nsources: [{kind: huggingface, name: './exp[1]'}]\n")
    with pytest.raises(InputError, match="as wildcards; rename the folder"):
        files_of(spec)


@given(st.text(st.sampled_from("*?[]!a-^"), min_size=1))
def test_an_escaped_path_matches_itself_alone(name: str) -> None:
    assert first_wildcard(escaped(name)) is None
    assert literal(escaped(name)) == name
