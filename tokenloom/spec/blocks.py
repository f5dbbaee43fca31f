"""The blocks of a spec beside its sources: `documents`, `chat`, `checks`, `runner` and `credentials`.

Checks, runner and credentials are not part of the identity of a version.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from tokenloom.spec.base import Location, RowFilter, SpecModel, as_any_of, as_list, kind_field
from tokenloom.spec.marks import Marks, Repeat

OF_TOKENIZER = "tokenizer"  # the template that comes with the tokenizer
TEMPLATES = ("chatml", "gemma", "llama3", "phi3", "zephyr")  # files of tokenloom/chat/templates
BLOCK_URL = "block://"  # prefix of a store that is defined by a Prefect block
_Share = Annotated[float, Field(ge=0, le=1)]
_Change = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_SINCE_LATEST = "since `latest`; 0.2 is 20 %"


class Transform(SpecModel):
    """Your own function, applied to each text before the rules: (str) -> str, or None to leave the text out.

    Of a conversation, it gets and returns the normalized object.
    """

    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = Field(
        description="`package.module:function`, importable where workers run"
    )
    version: Annotated[str, Field(min_length=1)] = Field(
        description="Part of the identity of a version: change it whenever you change the function"
    )


class DocumentRules(SpecModel):
    """Which rows become documents, and which of these a version has."""

    path_fields: ClassVar[tuple[str, ...]] = ("exclude",)
    operational_fields: ClassVar[tuple[str, ...]] = ("marks", "keep", "repeat")  # the plan adds them to the identity
    min_chars: int = Field(1, ge=0, description="Texts with fewer characters are counted, but not kept")
    max_chars: int | None = Field(None, ge=1, description="Texts with more characters are counted, but not kept")
    deduplicate: bool = Field(True, description="Whether to keep only the first of identical texts")
    exclude: Location | None = Field(None, description="File of content hashes or texts, one a line, to leave out")
    on_error: Literal["fail", "skip"] = Field(
        "fail", description="A bad row ends the build, or is left out, counted and listed in `quarantine.jsonl`"
    )
    encoding_errors: Literal["fail", "replace"] = Field(
        "fail", description="A text with invalid bytes is a bad row, or gets U+FFFD in their place"
    )
    max_bytes: int = Field(
        268_435_456, ge=1, le=2**31 - 1, description="Most bytes of UTF-8 of a document; a larger one is a bad row"
    )
    transform: Transform | None = Field(None, description="Your own function, applied to each text before the rules")
    without_target: Literal["drop", "keep", "fail"] = Field(
        "drop",
        exclude_if=lambda value: value == "drop",  # absent from identities, as in specs without conversations
        description="A conversation of which nothing is learned counts as filtered, is kept, or ends the build",
    )

    marks: list[Marks] = Field([], description="Files of other tools that mark documents")
    keep: RowFilter | None = Field(None, description="Documents to keep, by their marks: `quality >= 3 and not spam`")
    repeat: Repeat | None = Field(None, description="How many times a version has documents, by a mark")

    @model_validator(mode="after")
    def _rules_fit(self) -> DocumentRules:
        if not self.marks and (self.keep or self.repeat):
            raise ValueError("keep and repeat need `marks`: the files that mark the documents")
        if self.max_chars is not None and self.max_chars < self.min_chars:
            raise ValueError(f"max_chars ({self.max_chars}) is less than min_chars ({self.min_chars})")
        return self

    def check_without_texts(self) -> None:
        """Raise ValueError if a rule needs texts, for sources of tokens."""
        usual = DocumentRules()
        for key in ("min_chars", "max_chars", "encoding_errors", "transform"):
            if getattr(self, key) not in (getattr(usual, key), 0):  # min_chars may be 0
                raise ValueError(
                    f"documents.{key} works on texts, and sources of tokens have none; remove it, or write min_chars: "
                    "0 to keep documents without an id"
                )


class ChatRules(SpecModel):
    """How conversations become text: a chat template and its variables."""

    path_fields: ClassVar[tuple[str, ...]] = ("template",)
    template: Location = Field(
        OF_TOKENIZER,
        description="File of a Jinja chat template; `tokenizer`: the one that comes with the tokenizer; or one of "
        f"ours: {', '.join(f'`{name}`' for name in TEMPLATES)}",
    )
    arguments: dict[str, JsonValue] = Field({}, description="The template's variables: `{enable_thinking: false}`")
    date: Annotated[datetime.date, Field(strict=False)] | None = Field(
        None, description="The day, YYYY-MM-DD, for a template that asks for the present one; it requires this"
    )
    stop_tokens: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(as_list)] = Field(
        [], description="Tokens that end a turn of the assistant; empty: the last special one before the next message"
    )
    special_tokens_in_content: Literal["text", "fail", "token"] = Field(
        "text", description="What a special token spelled in a message is: `text`, a bad row (`fail`), or the `token`"
    )

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield (field, path) of the template, unless it is that of the tokenizer or one of ours."""
        yield from (item for item in super().paths() if item[1] not in (OF_TOKENIZER, *TEMPLATES))


class Checks(SpecModel):
    """Limits that a finished version must meet to be published; if it fails one, nothing is published."""

    min_documents: int | None = Field(None, ge=1, description="Fewest documents in all splits together")
    min_tokens: int | None = Field(None, ge=1, description="Fewest tokens in all splits together")
    max_duplicate_share: _Share | None = Field(None, description="Largest share of duplicates in the rows read")
    max_quarantined_share: _Share | None = Field(None, description="Largest share of skipped bad rows in those read")
    max_filtered_share: _Share | None = Field(
        None, description="Largest share of rows that rules or a filter leave out"
    )
    max_token_drift: _Change | None = Field(None, description=f"Largest change of the tokens {_SINCE_LATEST}")
    max_document_drift: _Change | None = Field(None, description=f"Largest change of the documents {_SINCE_LATEST}")
    max_bytes_per_token_drift: _Change | None = Field(None, description=f"Largest change of this ratio {_SINCE_LATEST}")
    max_length_drift: _Share | None = Field(
        None, description="Largest distance (total variation) of the histogram of lengths to that of `latest`"
    )
    max_documents_without_target: int | None = Field(
        None, ge=0, description="Most conversations of which nothing is learned, with those that are dropped"
    )
    min_learned_share: _Share | None = Field(None, description="Smallest share of learned tokens in conversations")
    stop_token_learned: bool | None = Field(None, description="Whether a stop token must end each assistant's turn")
    no_doubled_bos: bool | None = Field(None, description="Whether two beginning-of-text tokens in a row are refused")

    def limits(self) -> dict[str, float]:
        """Return the checks that are set, and their limits: 1 for those that only hold or not."""
        found = self.model_dump(exclude_none=True)
        return {name: 1 if value is True else value for name, value in found.items() if value is not False}


class _Runner(SpecModel):
    memory: int = Field(
        2_000_000_000, ge=2**27, description="Bytes of documents that a worker may hold while it merges spills"
    )


class ProcessRunner(_Runner):
    """Processes on the machine that runs the flow."""

    model_config = ConfigDict(title="Processes")
    kind: Literal["process"] = kind_field("process")
    workers: Annotated[int, Field(ge=0, le=512)] | None = Field(
        None, description="Worker processes; default: one per core; 0: the flow's own process does the work"
    )


class _ClusterRunner(_Runner):
    workers: Annotated[int, Field(ge=1, le=512)] | None = Field(
        None, description="Tasks at a time; default: all workers of the cluster, or one per core on this machine"
    )
    address: str | None = Field(
        None, description="`tcp://host:8786` of Dask, `ray://host:10001` of Ray; default: a cluster here for this run"
    )


class DaskRunner(_ClusterRunner):
    """Workers of a Dask cluster; each has the same tokenloom[dask] and reaches the store and Prefect's server."""

    model_config = ConfigDict(title="Dask")
    kind: Literal["dask"] = kind_field("dask")


class RayRunner(_ClusterRunner):
    """Workers of a Ray cluster; each has the same tokenloom[ray] and reaches the store and Prefect's server."""

    model_config = ConfigDict(title="Ray")
    kind: Literal["ray"] = kind_field("ray")


Runner = Annotated[ProcessRunner | DaskRunner | RayRunner, Field(discriminator="kind", json_schema_extra=as_any_of)]


class Credentials(SpecModel):
    """A Secret block of Prefect with the credentials of an object store: a JSON object of fsspec options."""

    model_config = ConfigDict(title="Credentials")
    protocol: Annotated[str, Field(pattern="^[a-z][a-z0-9+.-]*$")] = Field(
        description="Protocol of the URLs that need them: `s3`, `gs`, `az`, `abfs`"
    )
    block: Annotated[str, Field(pattern="^[a-z0-9-]+$")] = Field(
        title="Secret block", description='Its name; its value is like `{"key": "...", "secret": "..."}`'
    )
