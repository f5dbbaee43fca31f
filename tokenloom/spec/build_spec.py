"""The spec of a build as pydantic models: read from YAML, and shown by Prefect as a form.

`BuildSpec.identity` is the part of a spec that determines the bytes of a version. It contains neither the store nor the
paths: the content of the files enters instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator
from pydantic.fields import FieldInfo

from tokenloom.errors import SpecError
from tokenloom.spec.base import Location, Name, SpecModel, folded, join_path, without_dots
from tokenloom.spec.blocks import ChatRules, Checks, Credentials, DocumentRules, ProcessRunner, Runner
from tokenloom.spec.sources import Source
from tokenloom.spec.tokenizers import Tokenizer
from tokenloom.storage.formats.manifest import VERSION_PATTERN, given_options

MAX_SEED = 2**53 - 1  # the largest integer that a browser's form represents exactly

SplitName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]


class Split(SpecModel):
    """A part of a dataset: its name and its share of the documents."""

    model_config = ConfigDict(title="Split")
    name: SplitName = Field(description="Name of the split: lower-case letters, digits, `_` and `-`")
    share: float = Field(gt=0, le=1, description="Share of all documents; 0.1 is 10 %")


class BuildSpec(SpecModel):
    """Everything that defines a build."""

    dataset: Name = Field(description="Name of the dataset: lower-case letters, digits, `.`, `_` and `-`")
    store: Location = Field(
        description="Folder that holds the datasets: a path, a URL such as `s3://bucket/corpora` (also `gs://`, "
        "`abfs://`), or `block://local-file-system/NAME` for a Prefect block",
    )
    sources: list[Source] = Field(description="Where the documents come from; at least one source", min_length=1)
    tokenizer: Tokenizer = Field(description="Turns text into ids")
    splits: list[Split] = Field(  # a list, as databases do not keep the order of a mapping
        [Split(name="train", share=0.98), Split(name="validation", share=0.01), Split(name="test", share=0.01)],
        description="Parts of the dataset and their shares of the documents, which add up to 1; `train` takes the "
        "rest. YAML also accepts `{train: 0.98, test: 0.02}`",
    )
    limit: int | None = Field(
        None, ge=1, description="A try-out: only so many first documents of each source. The tag `tryout` names it"
    )
    documents: DocumentRules = Field(
        DocumentRules(), title="Documents", description="Which rows become documents", json_schema_extra=folded
    )
    chat: ChatRules = Field(
        ChatRules(),
        title="Chat",
        description="How conversations become text; only for sources with `messages`",
        json_schema_extra=folded,
    )
    checks: Checks = Field(
        Checks(), title="Checks", description="What a version must hold to be published", json_schema_extra=folded
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="Seed of the order of the documents")
    shard_tokens: int = Field(
        100_000_000, ge=1, le=2**40, title="Tokens per shard", description="Approximate number of tokens in a shard"
    )
    partition_bytes: int = Field(
        64_000_000, ge=1_000_000, le=2_000_000_000, description="About how much text a partition and a spill have"
    )
    anyway: bool = Field(False, description="Whether to build from more than 1,048,576 partitions; `--anyway` sets it")
    report: bool = Field(True, description="Whether to write a page with the version's figures once it is published")
    runner: Runner = Field(ProcessRunner(), description="Where the work runs")
    credentials: list[Credentials] = Field(
        [], description="Prefect blocks with credentials of stores; by default they come from the environment"
    )

    _places: dict[str, str] = PrivateAttr({})  # file and line of sources and checks, if the spec came from a file

    @field_validator("dataset")
    @classmethod
    def _no_version_name(cls, value: str) -> str:
        if VERSION_PATTERN.match(value):
            raise ValueError("16 hexadecimal digits name a version; choose another name")
        return value

    @field_validator("runner", mode="before")
    @classmethod
    def _runs_in_processes(cls, value: Any) -> Any:
        return {"kind": "process", **value} if isinstance(value, dict) else value

    @field_validator("splits", mode="before")
    @classmethod
    def _splits_as_list(cls, value: Any) -> Any:
        if not isinstance(value, dict | list):
            raise ValueError(
                "must be a mapping of names to shares, such as {train: 0.9, test: 0.1}, or a list of {name, share}"
            )
        return [{"name": name, "share": share} for name, share in value.items()] if isinstance(value, dict) else value

    @field_validator("splits")
    @classmethod
    def _shares(cls, value: list[Split]) -> list[Split]:
        names = [split.name for split in value]
        _check_names("splits", names)
        total = sum((Fraction(repr(split.share)) for split in value), Fraction(0))
        if abs(total - 1) > Fraction(1, 10**6):
            raise ValueError(f"shares must add up to 1, not {float(total):g}")
        if "train" not in names:
            raise ValueError("a split named train is required; it takes the rest of the key range")
        return value

    @model_validator(mode="after")
    def _source_names(self) -> BuildSpec:
        _check_names("sources", self.source_names())
        return self

    @model_validator(mode="after")
    def _tokens_are_ids(self) -> BuildSpec:
        has_ids = self.tokenizer.kind == "ids"
        for name, source in zip(self.source_names(), self.sources, strict=True):
            if source.kind == "tokens" and not has_ids:
                raise ValueError(
                    f"tokenizer: {name} holds tokens; write {{kind: ids, vocab_size: N, eot_id: ID, decode: the "
                    "tokenizer that made them}"
                )
            if source.kind != "tokens" and has_ids:
                raise ValueError(
                    f"sources: {name} holds texts, which the tokenizer ids can't encode; build texts and tokens as two "
                    "datasets"
                )
        if has_ids:
            self.documents.check_without_texts()
        return self

    @model_validator(mode="after")
    def _chat_is_used(self) -> BuildSpec:
        used = {"chat": self.chat != ChatRules(), "documents.without_target": self.documents.without_target != "drop"}
        for key, is_used in used.items():
            if is_used and not self.has_conversations:
                raise ValueError(f"{key}: no source holds conversations; give messages: KEY to one, or remove {key}")
        return self

    @model_validator(mode="after")
    def _marks_fit(self) -> BuildSpec:
        repeated = self.documents.repeat.splits if self.documents.repeat else []
        sources = [name for marks in self.documents.marks for name in marks.source]
        for key, names, known in (
            ("repeat.splits", repeated, [split.name for split in self.splits]),
            ("marks.source", sources, self.source_names()),
        ):
            for name in names:
                if name not in known:
                    raise ValueError(f"documents.{key}: there is no {name!r}; there are: {', '.join(known)}")
        return self

    @property
    def has_conversations(self) -> bool:
        """Whether a source holds conversations."""
        return any(source.holds_conversations for source in self.sources)

    def without_layout(self) -> list[str]:
        """Return the names of the sources of conversations that do not name their layout."""
        return [
            name
            for name, source in zip(self.source_names(), self.sources, strict=True)
            if source.holds_conversations and getattr(source, "layout", None) is None
        ]

    def with_layouts(self, layouts: Mapping[str, str | None]) -> BuildSpec:
        """Return the spec with the layouts of some sources, by name."""
        sources = [
            source.model_copy(update={"layout": layouts[name]}) if name in layouts else source
            for name, source in zip(self.source_names(), self.sources, strict=True)
        ]
        return self.model_copy(update={"sources": sources})

    def source_names(self) -> list[str]:
        """Return the name of each source, in order: the given name, or kind and position (`parquet-0`)."""
        return [source.source_name(i) for i, source in enumerate(self.sources)]

    def with_places(self, places: dict[str, str]) -> BuildSpec:
        """Return the spec with places for messages, by the keys of sources and checks: {"sources.0": "news.yaml:7"}."""
        spec = self.model_copy()
        spec._places = places
        return spec

    def place_of(self, key: str) -> str | None:
        """Return the place of a source or a check by its key; None if the spec did not come from a file."""
        return self._places.get(key)

    def source_place(self, name: str) -> str | None:
        """Return the place of a source, such as "news.yaml:7"; None if the spec did not come from a file."""
        return self.place_of(f"sources.{self.source_names().index(name)}")

    def split_shares(self) -> list[tuple[str, float]]:
        """Return (name, share) of each split in the order written, which is part of the identity."""
        return [(split.name, split.share) for split in self.splits]

    def ids_options(self) -> dict[str, Any]:
        """Return the tokenizer's options for readers of tokens; {} if sources are texts."""
        return self.tokenizer.model_dump(include={"vocab_size", "eot_id", "bos_id"})

    def identity(self) -> dict[str, Any]:
        """Return the part of the spec that determines the bytes, as JSON values without paths; see given_options."""
        operational = {"store", "checks", "partition_bytes", "anyway", "report", "runner", "credentials"}
        parts = {
            "sources": [
                {"name": name} | source.identity()
                for name, source in zip(self.source_names(), self.sources, strict=True)
            ],
            "tokenizer": self.tokenizer.identity(),
            "documents": self.documents.identity(),
            "chat": self.chat.identity() if self.has_conversations else {},
            "splits": [[name, share] for name, share in self.split_shares()],  # their order matters
        }
        return given_options(self.model_dump(exclude=operational | parts.keys()) | parts)

    def _parts(self) -> Iterator[tuple[str, SpecModel]]:
        yield from ((f"sources.{i}", source) for i, source in enumerate(self.sources))
        yield "tokenizer", self.tokenizer
        yield "documents", self.documents
        yield from ((f"documents.marks.{i}", marks) for i, marks in enumerate(self.documents.marks))
        yield "chat", self.chat

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield (key, path) for every path in the spec, the store first."""
        yield "store", self.store
        for key, part in self._parts():
            yield from ((f"{key}.{field}", path) for field, path in part.paths())

    def with_workers(self, workers: int | None) -> BuildSpec:
        """Return the spec with another number of workers; None changes nothing.

        Raises SpecError for 0 unless the runner is `process`.
        """
        if workers is None:
            return self
        if workers == 0 and self.runner.kind != "process":
            raise SpecError(f"0 workers: runner {self.runner.kind} needs at least one")
        return self.model_copy(update={"runner": self.runner.model_copy(update={"workers": workers})})

    def resolve(self, folder: str | Path, folders: Mapping[str, str] | None = None) -> BuildSpec:
        """Return the spec with absolute paths.

        Args:
            folder: the local folder or URL that relative paths start from.
            folders: others that those of some keys start from, by key as in `paths`.
        """

        def folder_of(key: str) -> str:
            return (folders or {}).get(key, str(folder))

        parts: dict[str, Any] = {key: part.with_paths(key, folder_of) for key, part in self._parts()}
        sources = [parts.pop(f"sources.{i}") for i in range(len(self.sources))]
        marks = [parts.pop(f"documents.marks.{i}") for i in range(len(self.documents.marks))]
        parts["documents"] = parts["documents"].model_copy(update={"marks": marks})
        store = without_dots(join_path(folder_of("store"), self.store))
        return self.model_copy(update=parts | {"store": store, "sources": sources})


def _check_names(what: str, names: Sequence[str]) -> None:
    twice = sorted(name for name in names if names.count(name) > 1)
    if twice:
        raise ValueError(f"two {what} are named {twice[0]!r}; give each its own name")


def field_names(location: Sequence[str | int]) -> list[str]:
    """Return the keys that a spec allows at `location`, such as ("documents",) or ("sources", 0, "parquet").

    A union is entered by the value of its `kind`.
    """
    models: dict[str, type[BaseModel]] = {"": BuildSpec}
    for part in location:
        if part in models:
            models = {"": models[str(part)]}
        elif not isinstance(part, int):  # an item of a list
            models = models_by_kind(models[""].model_fields[part])
    return [field.alias or name for name, field in models[""].model_fields.items()]


def models_by_kind(field: FieldInfo) -> dict[str, type[BaseModel]]:
    """Return the models of a field by their kind; a model without kinds is named ""."""
    found = _models_in(field.annotation)
    return {model.model_fields["kind"].default if "kind" in model.model_fields else "": model for model in found}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in a field's annotation, including those inside lists, unions and Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
