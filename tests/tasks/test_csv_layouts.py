"""CSV files without a header, with a blank first line, or with a first row of data that is taken for a header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.datasets import build, make_spec
from tests.builders.refusals import assert_refused
from tests.tasks.test_sources import Row, read_file
from tokenloom.errors import BadRow, InputError
from tokenloom.spec.build_spec import BuildSpec

NEWS = '3,Wall St. Bears,"Short-sellers, again"\n4,Oil prices,Soaring\n3,Two,Lines\n'
WORDS = "pos,great\nneg,terrible\npos,superb\n"


def spec_of(path: Path, **source: Any) -> BuildSpec:
    """Return a spec of one CSV file."""
    return make_spec(path.parent / "store", [{"kind": "csv", "path": str(path), "name": "rows", **source}])


def news(folder: Path, data: str = NEWS) -> Path:
    """Write a file without a header."""
    (folder / "a.csv").write_text(data, encoding="utf-8")
    return folder / "a.csv"


def read(path: Path, **options: Any) -> list[Row]:
    """Return (row, text) of a file."""
    return read_file("csv", path, **{"delimiter": ",", "header": False, **options})


def test_rows_without_a_header_are_numbered_from_0(tmp_path: Path) -> None:
    path = news(tmp_path)
    wanted = [(0, "Short-sellers, again"), (1, "Soaring"), (2, "Lines")]
    assert read(path, text="2") == wanted
    assert read(path, columns=["label", "title", "text"]) == wanted


def test_a_row_of_another_length_is_a_bad_row(tmp_path: Path) -> None:
    path = news(tmp_path, "1,a,b\n1,two\n2,c,d\n")
    with pytest.raises(BadRow, match=r"row 1: 2 fields, but .* first row has 3; repair the row, or name") as raised:
        read(path, text="2")
    assert raised.value.reason == "fields"
    with pytest.raises(BadRow, match=r"row 0: 3 fields, but the header, columns or .* has 2;"):
        read(path, columns=["text", "n"])
    assert read(path, text="2", on_error="skip") == [(0, "b"), (2, "d")]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ({"text": 7}, "no column '7'; its columns are: 0, 1, 2. Check delimiter, or set text:"),
        ({}, "no column 'text'; its columns are: 0, 1, 2. Check delimiter, or set text:"),
        (
            {"text": 1, "filter": "n > 1"},
            "no column 'n', which the filter names; its columns are: 0, 1, 2. Check delim",
        ),
        ({"columns": ["a", "b", "c"]}, "no column 'text'; its columns are: a, b, c. Check columns, or set text:"),
        ({"columns": ["text", "b", "c"], "id": "d"}, "no column 'd'"),
        ({"columns": ["text", "text", "c"]}, "'text'"),
    ],
)
def test_a_name_or_position_that_no_field_has_is_reported(source: dict[str, Any], found: str, tmp_path: Path) -> None:
    assert_refused(spec_of(news(tmp_path), header=False, **source), "a.csv: ", found)


def test_an_empty_file_without_a_header_has_no_rows(tmp_path: Path) -> None:
    assert read(news(tmp_path, ""), text="2") == read(news(tmp_path, "\n\n"), columns=["text"]) == []


@pytest.mark.parametrize("data", [NEWS, "label,title\n1,b\n", f'{WORDS}"open\n', "id\ttext\n1\ttwo\n", "", "  \n"])
@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_a_missing_column_is_answered_with_what_may_be_wrong(data: str, name: str, tmp_path: Path) -> None:
    advice = "Set header: false if this is a row of data, check delimiter, or set text: to one of them"
    with pytest.raises(InputError, match=rf"{name}: no column 'text'; its columns are: .*\. {advice}$"):
        read(news(tmp_path, data).rename(tmp_path / name), header=True)


@pytest.mark.parametrize("start", ["\n", "\r\n", "\n\r\n\n", "\ufeff\n", "  \n\n \t\n"])
def test_blank_lines_before_the_header_are_skipped(start: str, tmp_path: Path) -> None:
    path = news(tmp_path, f"{start}text,n\none,1\n\ntwo,2\n")
    assert read(path, header=True) == [(0, "one"), (1, "two")]
    if " " not in start:  # without a header, a blank can be the only field of a row
        assert read(news(tmp_path, start + NEWS), text="2")[0] == (0, "Short-sellers, again")


def test_the_header_enters_the_version_and_its_default_does_not(tmp_path: Path) -> None:
    path = news(tmp_path, "text,n\none,1\n")
    versions = [
        build(spec_of(path, **source)).version
        for source in (
            {},
            {"header": True, "columns": []},
            {"header": False, "text": 0},
            {"header": False, "text": "0"},
        )
    ]
    assert versions[0] == versions[1] != versions[2] == versions[3]


TEXTS = st.lists(st.text("ab\\\"N\n\t,;|'\x08é", max_size=8), min_size=1, max_size=5)
CONTROLS = {"\n": "n", "\t": "t", "\x08": "b"}


@given(texts=TEXTS)
def test_what_copy_of_postgresql_writes_is_read_back(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("copy") / "a.tsv"
    escaped = ["".join("\\" + CONTROLS.get(c, c) if c in CONTROLS or c == "\\" else c for c in text) for text in texts]
    path.write_text("".join(f"{i}\t{text}\n" for i, text in enumerate(escaped)), newline="")
    assert read(path, text="1", delimiter="\t", quote="", escape="\\") == list(enumerate(texts))


@given(texts=TEXTS)
def test_quotes_behind_an_escape_are_read_back_and_other_escapes_stay(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("escape") / "a.csv"
    escaped = [text.replace("\\", "\\\\").replace('"', '\\"') for text in texts]
    path.write_text("".join(f'{i},"{text}"\n' for i, text in enumerate(escaped)), newline="")
    assert read(path, text="1", escape="\\") == list(enumerate(texts))
    path.write_text('0,"C:\\new \\N"\n')  # Spark escapes nothing but quotes
    assert read(path, text="1", escape="\\") == [(0, "C:\\new \\N")]


def test_a_backslash_and_n_as_a_whole_field_is_null(tmp_path: Path) -> None:
    path = news(tmp_path, "0,\\N\n1,\\\\N\n2,'a,b'\n")
    assert read(path, text="1", quote="'", escape="\\") == [(0, None), (1, "\\N"), (2, "a,b")]


def test_escaped_quotes_are_answered_with_the_option_that_reads_them(tmp_path: Path) -> None:
    spec = spec_of(news(tmp_path, 'text\n"say \\"hi\\", he said"\n'))
    assert_refused(spec, "',' expected after '\"'", 'set escape: "\\\\" if a backslash stands before quotes')
    with pytest.raises(ValueError, match="delimiter, quote and escape must differ"):
        spec_of(tmp_path / "a.csv", quote="'", escape="'")
