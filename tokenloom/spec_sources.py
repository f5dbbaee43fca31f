"""The kinds of sources as a spec writes them; how each is read stands in tasks/sources/."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from tokenloom.row_filter import parse_filter
from tokenloom.spec_base import Location, Name, SpecModel, kind_field
from tokenloom.spec_form import as_any_of


def _parsed(value: str) -> str:
    parse_filter(value)
    return value


_Column = Annotated[str, Field(min_length=1)]
_Filter = Annotated[str, AfterValidator(_parsed)]
_BUILDERS = ("arrow", "csv", "json", "parquet", "text")  # of the package datasets, for local files


class _Source(SpecModel):
    def source_name(self, position: int) -> str:
        """Return the name that stands in the inputs of a version; `position` is that in the spec's list."""
        return getattr(self, "name", None) or f"{self.kind}-{position}"  # type: ignore[attr-defined]

    def pattern(self) -> str:
        """Return the path or glob of its files, "" for a source that has none."""
        return getattr(self, "path", "")

    def reading_options(self) -> dict[str, Any]:
        """Return what decides how a file is read: all fields but the source's name and its paths."""
        return self.model_dump(exclude={"name", *self.path_fields})


class _FileSource(_Source):
    path_fields: ClassVar[tuple[str, ...]] = ("path",)
    path: Location = Field(title="Path", description="File or glob, any fsspec URL: data/*.parquet")
    name: Name | None = Field(
        None, title="Name", description="Stands in the inputs of a version; default: kind and position"
    )


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


class CsvSource(_ColumnSource):
    """CSV files with a header line (RFC 4180); plain, .gz, .bz2 or .zst; a document is the text of one row."""

    model_config = ConfigDict(title="CSV")
    kind: Literal["csv"] = kind_field("csv")
    delimiter: Annotated[str, Field(min_length=1, max_length=1, pattern=r'^[^"\r\n\x00]')] = Field(
        ",", title="Delimiter", description="Between the fields of a row"
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
    """Text files in UTF-8; plain, .gz, .bz2 or .zst; a file is one document, or several with a separator."""

    model_config = ConfigDict(title="Text files")
    kind: Literal["text"] = kind_field("text")
    separator: Annotated[str, Field(min_length=1)] | None = Field(
        None, title="Separator", description="What stands between documents: <|endoftext|>; left out: a file is one"
    )


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
