"""Which rows become documents: the `documents` block of a spec."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from tokenloom.spec.base import Location, SpecModel


class Transform(SpecModel):
    """Your own function, applied to each text before the rules: (str) -> str, or None to leave the text out.

    Of a conversation, it gets and returns the normalized object.
    """

    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = Field(
        description="`package.module:function`, importable where workers run; gets a text and returns a text, or None "
        "to leave it out",
    )
    version: Annotated[str, Field(min_length=1)] = Field(
        description="Part of the identity of a version: change it whenever you change the function"
    )


class DocumentRules(SpecModel):
    """Which rows become documents."""

    path_fields: ClassVar[tuple[str, ...]] = ("exclude",)
    min_chars: int = Field(
        1, ge=0, title="Minimum characters", description="Texts with fewer characters are counted, but not kept"
    )
    max_chars: int | None = Field(
        None, ge=1, title="Maximum characters", description="Texts with more characters are counted, but not kept"
    )
    deduplicate: bool = Field(
        True, title="Drop duplicates", description="Whether to keep only the first of identical texts"
    )
    exclude: Location | None = Field(
        None,
        description="File with content hashes or texts, one per line: documents with these are not kept",
    )
    on_error: Literal["fail", "skip"] = Field(
        "fail",
        title="On a bad row",
        description="`fail`: a bad row ends the build; `skip`: it is left out, counted, and listed in "
        "`quarantine.jsonl`",
    )
    encoding_errors: Literal["fail", "replace"] = Field(
        "fail",
        title="On invalid UTF-8",
        description="`fail`: a text with invalid bytes is a bad row; `replace`: U+FFFD takes their place",
    )
    max_bytes: int = Field(
        268_435_456,
        ge=1,
        le=2**31 - 1,
        title="Largest document",
        description="Most bytes of UTF-8 that a document may have; a larger one is a bad row",
    )
    transform: Transform | None = Field(
        None, description="Your own function, applied to each text before the other rules"
    )
    without_target: Literal["drop", "keep", "fail"] = Field(
        "drop",
        title="Without a target",
        description="A conversation of which nothing is learned: `drop` counts it as filtered, `keep` keeps it, "
        "`fail` ends the build",
    )

    @model_validator(mode="after")
    def _lengths(self) -> DocumentRules:
        if self.max_chars is not None and self.max_chars < self.min_chars:
            raise ValueError(f"max_chars ({self.max_chars}) is less than min_chars ({self.min_chars})")
        return self

    def check_without_texts(self) -> None:
        """Raise ValueError if a rule needs texts, for sources of tokens."""
        defaults = DocumentRules()
        needs = {
            "transform": "works on texts",
            "max_chars": "counts characters",
            "encoding_errors": "is for text files",
        }
        if key := next((key for key in needs if getattr(self, key) != getattr(defaults, key)), None):
            raise ValueError(f"documents.{key} {needs[key]}, and sources of tokens have none; remove it")
        if self.min_chars > 1:
            raise ValueError(
                "documents.min_chars counts characters, and sources of tokens have none; remove it, or write 0 to keep "
                "documents without an id"
            )

    def identity(self) -> dict[str, Any]:
        """See SpecModel.identity; the default of `without_target` is absent, as in specs without conversations."""
        options = super().identity()
        return {key: value for key, value in options.items() if (key, value) != ("without_target", "drop")}
