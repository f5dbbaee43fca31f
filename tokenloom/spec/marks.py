"""Marks in a spec: files of other tools that say something about documents, and what follows from it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from tokenloom.spec.base import QUOTES, Location, SpecModel, as_list
from tokenloom.spec.syntax import is_table

MAX_TIMES = 255


def _spelled(value: Any) -> str:
    """Return a value of a mark as a text; raise ValueError for one that YAML reads as neither text nor number."""
    if isinstance(value, bool | None) or value != value:
        raise ValueError(f"{value!r} can't be the value of a mark; {QUOTES}")
    return str(value)


_Text = Annotated[str, BeforeValidator(_spelled)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class Marks(SpecModel):
    """Files that mark documents: tables with a column for each mark, or lists of keys."""

    model_config = ConfigDict(title="Marks", populate_by_name=True)
    path_fields: ClassVar[tuple[str, ...]] = ("path",)
    pattern_fields: ClassVar[tuple[str, ...]] = ("path",)
    path: Location = Field(description="Files of marks, as the `path` of a source: `marks/*.parquet`")
    key: Literal["row", "id", "content"] = Field(
        description="What says which document is meant: `row`, a file of marks for each input file, row by row, or "
        "columns `path` and `row`; `id`, the ids of the source; `content`, content hashes or texts"
    )
    as_: _Name | None = Field(
        None,
        alias="as",
        description="The files are lists of keys, and this mark is true for their documents; `remove` drops these",
    )
    missing: Literal["keep", "drop", "fail"] | None = Field(
        None,
        description="A document without a mark: `keep`, `drop`, or `fail` ends the build; default: `keep` for lists, "
        "else `fail`",
    )
    source: Annotated[list[str], BeforeValidator(as_list)] = Field(
        [], description="Names of the sources whose documents are marked; default: all"
    )

    @model_validator(mode="after")
    def _list_has_a_name(self) -> Self:
        has_marks = is_table(self.path) and (self.key == "id" or self.path.endswith(".parquet"))
        if self.as_ is None and not has_marks:
            raise ValueError(f"{self.path} is a list of keys: give `as: remove`, or the name of a mark as `as`")
        return self

    def options(self) -> dict[str, Any]:
        """Return what decides, beside the files, which documents are marked."""
        missing = self.missing or ("keep" if self.as_ else "fail")
        return self.model_dump(mode="json", exclude={"path"}) | {"missing": missing}


class Repeat(SpecModel):
    """How many times documents are in a version, by the value of a mark."""

    model_config = ConfigDict(title="Repeat")
    by: _Name = Field(description="The mark whose value decides")
    times: dict[_Text, Annotated[float, Field(ge=0, le=MAX_TIMES, strict=False)]] = Field(
        description="Copies of a document by the mark's value, such as `{4: 2.5, 5: 7}`; of 2.5, half of the documents "
        "get a third; other values: one"
    )
    splits: list[str] = Field(["train"], description="The splits in which documents are repeated")
