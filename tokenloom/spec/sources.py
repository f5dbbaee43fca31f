"""The options of each kind of source; tasks/sources/ reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from tokenloom.spec.base import Location, Name, RowFilter, SpecModel, as_any_of, as_list, kind_field
from tokenloom.spec.syntax import FILTER_RULES, LAYOUTS, check_pattern


def _position_as_name(value: Any) -> Any:
    """Return the position of a field, which a spec may write as a number, as the name that the reader uses."""
    return str(value) if type(value) is int else value


# not an enum, for which Prefect's server refuses null
Layout = Annotated[str, Field(pattern=f"^({'|'.join(LAYOUTS)})$")]
_LAYOUT_NAMES = ", ".join(f"`{name}`" for name in LAYOUTS)
_ColumnName = Annotated[str, BeforeValidator(_position_as_name)]
_GivenName = Annotated[_ColumnName, Field(min_length=1)]
COLUMN_RULES = 2  # part of names, as FILTER_RULES: raise it if other tokens of rows of ids are read or learned
_BUILDERS = ("arrow", "csv", "json", "parquet", "text")  # builders of the package datasets that read local files


class _Source(SpecModel):
    @model_validator(mode="before")
    @classmethod
    def _text_or_messages(cls, values: Any) -> Any:
        """Check that a source names its texts or its conversations, not both; without messages, text has a default."""
        if not isinstance(values, dict) or "text" not in cls.model_fields:
            return values
        if values.get("messages") is not None:
            if values.get("text"):  # Prefect's form sends an empty text
                raise ValueError("text and messages exclude each other: remove text, or messages if rows are texts")
            return {**values, "text": None}
        for key in ("tools", "layout"):
            if values.get(key) is not None:
                raise ValueError(f"{key} is an option of conversations: give messages, the key with them, or remove it")
        if "text" in values and values["text"] is None and cls.model_fields["text"].default is not None:
            raise ValueError("give text, the key with the texts, or messages, the key with the conversations")
        return values

    def source_name(self, position: int) -> str:
        """Return the name of the source in a version's inputs; `position` is its position in the spec."""
        return getattr(self, "name", None) or f"{self.kind}-{position}"  # type: ignore[attr-defined]

    @property
    def holds_conversations(self) -> bool:
        """Whether its rows are conversations, not texts."""
        return getattr(self, "messages", None) is not None

    def reading_options(self) -> dict[str, Any]:
        """Return the options that determine how a file is read: all fields except those that only select files."""
        return self.model_dump(exclude={"name", "leave_out", *self.path_fields}) | self._rules()

    def identity(self) -> dict[str, Any]:
        """See SpecModel.identity."""
        return super().identity() | self._rules()

    def _rules(self) -> dict[str, Any]:
        return {"filter_rules": FILTER_RULES} if getattr(self, "filter", None) else {}


class _FileSource(_Source):
    path_fields: ClassVar[tuple[str, ...]] = ("path",)
    pattern_fields: ClassVar[tuple[str, ...]] = ("path",)
    operational_fields: ClassVar[tuple[str, ...]] = ("leave_out",)  # the list of inputs reflects it
    path: Location = Field(description="File, glob or fsspec URL, such as `data/*.parquet`")
    name: Name | None = Field(None, description="Name of the source in a version; default: its kind and position")
    leave_out: Annotated[list[Annotated[str, AfterValidator(check_pattern)]], BeforeValidator(as_list)] = Field(
        [], description="Patterns of files to skip although `path` matches: `*.tmp`, or `drafts/*` for a folder"
    )


class _Columns(_Source):
    text: _ColumnName | None = Field(
        "text",
        description="Column or key with the text, such as `meta.body`; in CSV without names, its position from 0",
    )
    messages: _GivenName | None = Field(
        None, description="In place of `text`: column or key with a conversation, or its JSON; `.` if each row is one"
    )
    tools: _GivenName | None = Field(
        None, description="Column or key with the tools of a conversation, or their JSON; default: `tools`, if there"
    )
    layout: Layout | None = Field(
        None, description=f"How a row holds a conversation: {_LAYOUT_NAMES}; by default, recognized from the first rows"
    )
    filter: RowFilter | None = Field(None, description='Rows to keep, such as `language == "en" and score >= 0.5`')
    id: _GivenName | None = Field(None, description="Column or key whose value is copied to the document table")


class _ColumnSource(_Columns, _FileSource):
    pass


class ParquetSource(_ColumnSource):
    """Parquet files; a document is the text or conversation of one row."""

    model_config = ConfigDict(title="Parquet")
    kind: Literal["parquet"] = kind_field("parquet")


class JsonlSource(_ColumnSource):
    """JSON lines, or JSON arrays of objects; plain, .gz, .bz2 or .zst; an object has a text or a conversation."""

    model_config = ConfigDict(title="JSON lines")
    kind: Literal["jsonl"] = kind_field("jsonl")


class CsvSource(_ColumnSource):
    """CSV files (RFC 4180), with or without a header; plain, .gz, .bz2 or .zst; a row has a text or a conversation."""

    model_config = ConfigDict(title="CSV")
    kind: Literal["csv"] = kind_field("csv")
    delimiter: Annotated[str, Field(min_length=1, max_length=1, pattern=r'^[^"\r\n\x00]')] = Field(
        ",", description="Character that separates the fields of a row"
    )
    quote: Annotated[str, Field(max_length=1, pattern=r"^[^\r\n\x00]*$")] = Field(
        '"', description="Character around a field; empty if there is none, as in PostgreSQL's COPY"
    )
    escape: Annotated[str, Field(min_length=1, max_length=1, pattern=r"^[^\r\n\x00]*$")] | None = Field(
        None, description="Character before a quote within a field, such as `\\`; without one, quotes are doubled"
    )
    header: bool = Field(True, description="Whether the first line names the columns")
    columns: list[str] = Field([], description="Names of the fields, in order, for files without a header")

    @model_validator(mode="after")
    def _marks_and_names(self) -> CsvSource:
        marks = [mark for mark in (self.delimiter, self.quote, self.escape) if mark]
        if len(set(marks)) < len(marks):
            raise ValueError("delimiter, quote and escape must differ; quotes are doubled without escape")
        if self.header and self.columns:
            raise ValueError("columns names the fields of files without a header: set header: false, or remove columns")
        return self


class ArrowSource(_ColumnSource):
    """Arrow files, or folders that datasets.save_to_disk wrote; a document is the text or conversation of one row."""

    model_config = ConfigDict(title="Arrow")
    kind: Literal["arrow"] = kind_field("arrow")


class ArrayRecordSource(_ColumnSource):
    """ArrayRecord files; a document is one record, or the text or conversation of its JSON object."""

    model_config = ConfigDict(title="ArrayRecord")
    kind: Literal["arrayrecord"] = kind_field("arrayrecord")
    text: _GivenName | None = Field(
        None, description="Key with the text, if records are JSON objects; by default, a record is the text"
    )

    @model_validator(mode="after")
    def _objects(self) -> ArrayRecordSource:
        if self.text is None and self.messages is None and (self.filter or self.id):
            raise ValueError("filter and id need records that are JSON objects: give text, the key with their text")
        return self


class TextSource(_FileSource):
    """Text files; plain, .gz, .bz2 or .zst; a file is one document, or several with a separator."""

    model_config = ConfigDict(title="Text files")
    kind: Literal["text"] = kind_field("text")
    separator: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Text that separates documents, such as `<|endoftext|>`; by default, a file is one document"
    )


class _Dataset(_Source):
    kind: Literal["huggingface"] = kind_field("huggingface")
    name: Location = Field(
        title="Dataset",
        description="`org/name` on the hub; a folder such as `./data`; or a builder: `json`, `csv`, `parquet`, `text`, "
        "`arrow`",
    )
    config: str | None = Field(None, description="Configuration of the dataset; default: the dataset's own default")
    split: Annotated[str, Field(pattern=r"^[\w.-]+$")] = Field("train", description="Split of the dataset to read")
    revision: str | None = Field(None, description="Branch, tag or commit; default: `main`. Versions record the commit")
    data_files: Location | None = Field(None, description="File or glob in the dataset; for a builder, its files")
    take: Annotated[int, Field(ge=1)] | None = Field(None, description="How many first rows to read, as one stream")


class HuggingFaceSource(_Columns, _Dataset):
    """A dataset on the Hugging Face Hub, a local folder of data files, or files read by one of its builders."""

    model_config = ConfigDict(title="Hugging Face dataset")
    pattern_fields: ClassVar[tuple[str, ...]] = ("data_files",)

    @model_validator(mode="after")
    def _files_of_a_builder(self) -> HuggingFaceSource:
        if self.name in _BUILDERS and self.data_files is None:
            raise ValueError(f"the builder {self.name!r} reads files: give data_files")
        return self

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield (field, path) for each path on this machine: a folder, or the files of a builder."""
        if self.name.startswith(("/", "./", "../", "~")):
            yield "name", self.name
        if self.name in _BUILDERS and self.data_files:
            yield "data_files", self.data_files

    def source_name(self, position: int) -> str:
        """Return kind and position; `name` is that of the dataset."""
        return f"{self.kind}-{position}"

    def reading_options(self) -> dict[str, Any]:
        """Return all fields: workers open the dataset again."""
        return self.model_dump() | self._rules()


class TokensSource(_FileSource):
    """Tokens that another trainer's tools made; needs the tokenizer ids."""

    model_config = ConfigDict(title="Tokens")
    kind: Literal["tokens"] = kind_field("tokens")
    format: Literal["megatron", "olmo", "llmc", "nanogpt", "datatrove", "huggingface"] = Field(
        description="Whose files they are; docs/guides/imports.md describes each format"
    )
    dtype: Literal["uint8", "uint16", "uint32", "uint64", "int32", "int64"] | None = Field(
        None, title="Type", description="Type of an id, if the files do not state it: `olmo`, `nanogpt`, `datatrove`"
    )

    @model_validator(mode="after")
    def _type(self) -> TokensSource:
        if self.dtype and self.format not in ("olmo", "nanogpt", "datatrove"):
            raise ValueError(f"dtype: the files of {self.format} say the type of their ids; remove it")
        return self

    def _rules(self) -> dict[str, Any]:
        return {"column_rules": COLUMN_RULES} if self.format == "huggingface" else {}


_OfFiles = ParquetSource | JsonlSource | CsvSource | TextSource | ArrowSource | ArrayRecordSource
Source = Annotated[
    _OfFiles | HuggingFaceSource | TokensSource, Field(discriminator="kind", json_schema_extra=as_any_of)
]
