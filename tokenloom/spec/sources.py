"""The kinds of sources as a spec writes them; how each is read stands in tasks/sources/."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from tokenloom.spec.base import Location, Name, SpecModel, kind_field
from tokenloom.spec.form import as_any_of
from tokenloom.spec.leave_out import check_pattern
from tokenloom.spec.row_filter import columns_of, parse_filter


def _parsed(value: str) -> str:
    parse_filter(value)
    return value


def _codec(name: str) -> str:
    """Return Python's own name of an encoding that text files may be in."""
    refused = ValueError(f"{name!r} is not an encoding of text files; utf-16, cp1252, gb18030 are some")
    try:
        codec = codecs.lookup(name)
        "a".encode(name)  # refuses codecs that are not for text, such as hex
    except (LookupError, ValueError) as error:  # ValueError: a name that no module can have
        raise refused from error
    if codec.incrementaldecoder is None or codec.name in _NO_FILES:
        raise refused
    return codec.name


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _not_default(value: list[str]) -> list[str]:
    return [] if value == ["utf-8"] else value


def _position_as_name(value: Any) -> Any:
    """Return a position of a field, which a spec may write as a number, as the name that a reader gives it."""
    if type(value) is int and value < 0:
        raise ValueError("a position is counted from 0, for the first field: it can't be negative")
    return str(value) if type(value) is int else value


_NO_FILES = ("idna", "punycode")  # encodings of names in a network
_Column = Annotated[str, Field(min_length=1)]
_Field = Annotated[str, BeforeValidator(_position_as_name)]
_Filter = Annotated[str, AfterValidator(_parsed)]
_Encodings = Annotated[
    list[Annotated[str, AfterValidator(_codec)]],
    BeforeValidator(_listed),
    AfterValidator(_not_default),
]


def _encoding_field() -> Any:
    return Field(
        [],
        title="Encoding",
        description="As Python names it: utf-16, cp1252; of several the first that decodes a whole file. Empty: utf-8",
    )


_ADDED = ("encoding", "header", "columns")
_BUILDERS = ("arrow", "csv", "json", "parquet", "text")  # of the package datasets, for local files


def _is_position(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name


class _Source(SpecModel):
    def source_name(self, position: int) -> str:
        """Return the name that stands in the inputs of a version; `position` is that in the spec's list."""
        return getattr(self, "name", None) or f"{self.kind}-{position}"  # type: ignore[attr-defined]

    def pattern(self) -> str:
        """Return the path or glob of its files, "" for a source that has none."""
        return getattr(self, "path", "")

    def left_out(self) -> list[str]:
        """Return the patterns of files that it leaves out; see LeaveOut."""
        return getattr(self, "leave_out", [])

    def reading_options(self) -> dict[str, Any]:
        """Return what decides how a file is read: all fields but those that only say which files there are.

        One of _ADDED that is at its default is left out: the names of older spills do not know it.
        """
        options = self.model_dump(exclude={"name", "leave_out", *self.path_fields})
        fields = type(self).model_fields
        return {key: value for key, value in options.items() if key not in _ADDED or value != fields[key].default}


class _FileSource(_Source):
    path_fields: ClassVar[tuple[str, ...]] = ("path",)
    path: Location = Field(title="Path", description="File or glob, any fsspec URL: data/*.parquet")
    name: Name | None = Field(
        None, title="Name", description="Stands in the inputs of a version; default: kind and position"
    )
    leave_out: Annotated[list[Annotated[str, AfterValidator(check_pattern)]], BeforeValidator(_listed)] = Field(
        [], title="Leave out", description="Files that the path matches and that are not read, as in .gitignore: *.tmp"
    )

    def identity(self) -> dict[str, Any]:
        """See SpecModel.identity; what `leave_out` decides stands in the list of inputs."""
        return {key: value for key, value in super().identity().items() if key != "leave_out"}


class _ColumnSource(_FileSource):
    text: str = Field("text", title="Text", description="Column or key of the text; may be dotted: meta.body")
    filter: _Filter | None = Field(None, title="Filter", description='Rows to keep: language == "en" and score >= 0.5')
    id: _Column | None = Field(None, title="Id", description="Column or key that is carried to the document table")


class ParquetSource(_ColumnSource):
    """Parquet files; a document is the text of one row."""

    model_config = ConfigDict(title="Parquet")
    kind: Literal["parquet"] = kind_field("parquet")


class JsonlSource(_ColumnSource):
    """JSON lines, or JSON arrays of objects; plain, .gz, .bz2 or .zst; a document is the text of one object."""

    model_config = ConfigDict(title="JSON lines")
    kind: Literal["jsonl"] = kind_field("jsonl")
    encoding: _Encodings = _encoding_field()


class CsvSource(_ColumnSource):
    """CSV files (RFC 4180), with or without a header; plain, .gz, .bz2 or .zst; a document is the text of one row."""

    model_config = ConfigDict(title="CSV")
    kind: Literal["csv"] = kind_field("csv")
    text: _Field = Field(
        "text", title="Text", description="Column of the text; without header and columns its position, 0 is the first"
    )
    id: _Field | None = Field(
        None, title="Id", description="Column that is carried to the document table; or its position, as for the text"
    )
    delimiter: Annotated[str, Field(min_length=1, max_length=1, pattern=r'^[^"\r\n\x00]')] = Field(
        ",", title="Delimiter", description="Between the fields of a row"
    )
    header: bool = Field(True, title="Header", description="Whether the first line names the columns")
    columns: list[str] = Field(
        [], title="Columns", description="Names of the fields of a row, in order, for files without a header"
    )
    encoding: _Encodings = _encoding_field()

    @model_validator(mode="after")
    def _names(self) -> CsvSource:
        if self.header and self.columns:
            raise ValueError("columns names the fields of files without a header: set header: false, or remove columns")
        if not self.header:
            self._check_columns() if self.columns else self._check_positions()
        return self

    def _check_columns(self) -> None:
        if twice := [name for name in self.columns if self.columns.count(name) > 1]:
            raise ValueError(f"columns: two fields are named {twice[0]!r}; give each its own name")
        compared = columns_of(parse_filter(self.filter)) if self.filter else []
        named = [("text", self.text), ("id", self.id), *(("filter", name) for name in compared)]
        if wrong := next(((key, name) for key, name in named if name is not None and name not in self.columns), None):
            raise ValueError(f"{wrong[0]}: {wrong[1]!r} is not in columns, which are: {', '.join(self.columns)}")

    def _check_positions(self) -> None:
        if self.filter:
            raise ValueError("filter: without a header its columns need names: give columns: [name, ...]")
        named = [("text", self.text), ("id", self.id)]
        if wrong := next(((key, name) for key, name in named if name is not None and not _is_position(name)), None):
            raise ValueError(
                f"{wrong[0]}: without a header there is no column {wrong[1]!r}: give columns: [name, ...], or the "
                f"position of the field, {wrong[0]}: 0 for the first"
            )


class ArrowSource(_ColumnSource):
    """Arrow files, or folders written by datasets.save_to_disk; a document is the text of one row."""

    model_config = ConfigDict(title="Arrow")
    kind: Literal["arrow"] = kind_field("arrow")


class ArrayRecordSource(_ColumnSource):
    """ArrayRecord files; a document is one record, or the text of its JSON object."""

    model_config = ConfigDict(title="ArrayRecord")
    kind: Literal["arrayrecord"] = kind_field("arrayrecord")
    text: _Column | None = Field(  # type: ignore[assignment]
        None, title="Text", description="Key of the text if a record is a JSON object; left out: a record is the text"
    )

    @model_validator(mode="after")
    def _objects(self) -> ArrayRecordSource:
        if self.text is None and (self.filter or self.id):
            raise ValueError("filter and id need records that are JSON objects: give text, the key of their text")
        return self


class TextSource(_FileSource):
    """Text files; plain, .gz, .bz2 or .zst; a file is one document, or several with a separator."""

    model_config = ConfigDict(title="Text files")
    kind: Literal["text"] = kind_field("text")
    separator: Annotated[str, Field(min_length=1)] | None = Field(
        None, title="Separator", description="What stands between documents: <|endoftext|>; left out: a file is one"
    )
    encoding: _Encodings = _encoding_field()


class HuggingFaceSource(_Source):
    """A dataset of the Hugging Face hub, a local folder of data files, or files through one of its builders."""

    model_config = ConfigDict(title="Hugging Face dataset")
    kind: Literal["huggingface"] = kind_field("huggingface")
    name: Location = Field(
        title="Dataset", description="Of the hub: org/name; a folder: ./data; or json, csv, parquet, text, arrow"
    )
    config: str | None = Field(None, title="Config", description="Default: the dataset's own")
    split: Annotated[str, Field(pattern=r"^[\w.-]+$")] = Field(
        "train", title="Split", description="Of the dataset: train"
    )
    revision: str | None = Field(
        None, title="Revision", description="Branch, tag or commit; the inputs name the commit. Default: main"
    )
    data_files: Location | None = Field(
        None, title="Data files", description="File or glob in the dataset; of a builder: where they are"
    )
    take: Annotated[int, Field(ge=1)] | None = Field(
        None, title="Take", description="Only the first rows, read as one stream"
    )
    text: str = Field("text", title="Text", description="Column of the text; may be dotted: meta.body")
    filter: _Filter | None = Field(None, title="Filter", description='Rows to keep: language == "en" and score >= 0.5')
    id: _Column | None = Field(None, title="Id", description="Column that is carried to the document table")

    @model_validator(mode="after")
    def _files_of_a_builder(self) -> HuggingFaceSource:
        if self.name in _BUILDERS and self.data_files is None:
            raise ValueError(f"the builder {self.name!r} reads files: give data_files")
        return self

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield (field, path) of what lies on this machine: a folder, or the files of a builder."""
        if self.name.startswith(("/", "./", "../", "~")):
            yield "name", self.name
        if self.name in _BUILDERS and self.data_files:
            yield "data_files", self.data_files

    def source_name(self, position: int) -> str:
        """Return kind and position; `name` is the dataset's."""
        return f"{self.kind}-{position}"

    def reading_options(self) -> dict[str, Any]:
        """Return all fields: the dataset is opened again where it is read."""
        return self.model_dump()


Source = Annotated[
    ParquetSource | JsonlSource | CsvSource | TextSource | ArrowSource | ArrayRecordSource | HuggingFaceSource,
    Field(discriminator="kind", json_schema_extra=as_any_of),
]
