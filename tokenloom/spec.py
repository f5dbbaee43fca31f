"""What a build makes, as pydantic models: read from YAML, shown by Prefect as a form.

A spec has an identity part (`BuildSpec.identity`): what decides the bytes of a version. The store and the
typed paths are not in it; the content of the files is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

NAME_PATTERN = r"^[a-z][a-z0-9._-]{0,63}$"
_VERSION = re.compile(r"^[0-9a-f]{16}$")
# A password before the host, or a token or signature behind the path.
SECRET_URL = re.compile(
    r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)|(?<=[?&])[^=&\s]*(?:sig|token|secret|password|key)[^=&\s]*=[^&\s'\"]*", re.I
)
MAX_SEED = 2**53 - 1  # the largest integer that a form in a browser keeps exactly

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
SplitName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _not_built(field: str) -> Any:
    """A validator that refuses any value of `field` other than its default: the part is not built yet."""

    def refuse(cls: type[BaseModel], value: Any) -> Any:
        default = cls.model_fields[field].default
        if value != default:
            raise ValueError(f"{field} is not supported by this release; leave it out (default: {default!r})")
        return value

    return field_validator(field)(refuse)


class _FileSource(_Model):
    path: str = Field(title="Path", description="File or glob, any fsspec URL: data/*.parquet", min_length=1)
    name: Name | None = Field(
        None, title="Name", description="Stands in the inputs of a version; default: kind and position"
    )

    @field_validator("path")
    @classmethod
    def _no_secret(cls, value: str) -> str:
        if SECRET_URL.search(value):
            raise ValueError("a URL must not carry a password; give credentials in the environment")
        return value


class ParquetSource(_FileSource):
    """Parquet files; a document is the text of one row."""

    model_config = ConfigDict(title="Parquet")
    kind: Literal["parquet"] = "parquet"
    text: str = Field("text", title="Text column", min_length=1)
    filter: str | None = Field(None, title="Filter", description="Not supported yet")
    id: str | None = Field(None, title="Id column", description="Not supported yet")

    _filter = _not_built("filter")
    _id = _not_built("id")


class JsonlSource(_FileSource):
    """JSON lines, plain or .gz; a document is the text of one line's object."""

    model_config = ConfigDict(title="JSON lines")
    kind: Literal["jsonl"] = "jsonl"
    text: str = Field("text", title="Text key", description="May be dotted: meta.body", min_length=1)
    filter: str | None = Field(None, title="Filter", description="Not supported yet")
    id: str | None = Field(None, title="Id key", description="Not supported yet")

    _filter = _not_built("filter")
    _id = _not_built("id")


class TextSource(_FileSource):
    """Text files in UTF-8; a file is one document."""

    model_config = ConfigDict(title="Text files")
    kind: Literal["text"] = "text"


Source = Annotated[ParquetSource | JsonlSource | TextSource, Field(discriminator="kind")]


class ByteTokenizer(_Model):
    """UTF-8 bytes as ids; end of text is 255, a byte that no UTF-8 text contains."""

    model_config = ConfigDict(title="Bytes")
    kind: Literal["byte"] = "byte"
    name: Name | None = Field(None, title="Name", description="Default: byte")


class TiktokenTokenizer(_Model):
    """A byte-pair encoding of tiktoken, by name or from local files."""

    model_config = ConfigDict(title="tiktoken")
    kind: Literal["tiktoken"] = "tiktoken"
    name: Name | None = Field(
        None, title="Name", description="gpt2, cl100k_base, o200k_base, ...; with files only a label"
    )
    ranks: str | None = Field(None, title="Ranks file", description="A .tiktoken file, or vocab.bpe")
    encoder: str | None = Field(None, title="Encoder file", description="encoder.json beside a vocab.bpe")
    pattern: str | None = Field(
        None,
        title="Pattern",
        description="How text is cut before merging, with files: a tiktoken name or a regular expression",
    )
    special_tokens: dict[str, int] = Field({}, title="Special tokens", description="With files: name -> id")
    eot: str | None = Field(None, title="End of text", description="Needed where it can't be known: <|endoftext|>")
    bos: str | None = Field(None, title="Begin of text", description="Put before each document; default none")

    @model_validator(mode="after")
    def _one_definition(self) -> TiktokenTokenizer:
        if self.ranks is None and self.name is None:
            raise ValueError("give the name of a tiktoken encoding (gpt2), or files (ranks: vocab.tiktoken)")
        if self.ranks is None and (self.encoder or self.pattern or self.special_tokens):
            raise ValueError("encoder, pattern and special_tokens go with ranks: a file of ranks")
        if self.ranks is not None and self.encoder is None and self.pattern is None:
            raise ValueError("a file of ranks needs a pattern: gpt2, cl100k_base, o200k_base or an expression")
        if self.ranks is None:
            from tiktoken import list_encoding_names

            if self.name not in (known := sorted(list_encoding_names())):
                raise ValueError(f"tiktoken knows no encoding {self.name!r}; allowed: {', '.join(known)}")
        return self


Tokenizer = Annotated[ByteTokenizer | TiktokenTokenizer, Field(discriminator="kind")]


class DocumentRules(_Model):
    """What makes a row a document."""

    min_chars: int = Field(1, ge=0, title="Least characters", description="Shorter texts are counted, not kept")
    deduplicate: bool = Field(True, title="Drop duplicates", description="Of equal texts the first stays")
    on_error: Literal["fail", "skip"] = Field("fail", title="On a bad row")
    encoding_errors: Literal["fail", "replace"] = Field("fail", title="On invalid UTF-8")
    max_bytes: int = Field(
        268_435_456,
        ge=1,
        le=2**31 - 1,
        title="Largest document",
        description="In UTF-8 bytes; more is an error",
    )

    _on_error = _not_built("on_error")
    _encoding_errors = _not_built("encoding_errors")


class BuildSpec(_Model):
    """All that a build is made from."""

    dataset: Name = Field(title="Dataset", description="Lower case letters, digits, '.', '_', '-'")
    store: str = Field(title="Store", description="Folder of the datasets", min_length=1)
    sources: list[Source] = Field(title="Sources", min_length=1)
    tokenizer: Tokenizer = Field(ByteTokenizer(), title="Tokenizer")
    documents: DocumentRules = Field(DocumentRules(), title="Documents")
    splits: dict[SplitName, Annotated[float, Field(gt=0, le=1)]] = Field(
        {"train": 0.98, "validation": 0.01, "test": 0.01},
        title="Splits",
        description="Shares that add up to 1; train takes the rest",
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, title="Seed", description="Of the order of documents")
    shard_tokens: int = Field(100_000_000, ge=1, le=2**40, title="Tokens a shard")
    packs: list[dict[str, Any]] = Field([], title="Packs", description="Not supported yet")

    _packs = _not_built("packs")

    @field_validator("dataset")
    @classmethod
    def _no_version_name(cls, value: str) -> str:
        if _VERSION.match(value):
            raise ValueError("16 hexadecimal digits name a version; choose another name")
        return value

    @field_validator("store")
    @classmethod
    def _no_secret(cls, value: str) -> str:
        if SECRET_URL.search(value):
            raise ValueError("a URL must not carry a password; give credentials in the environment")
        return value

    @field_validator("splits")
    @classmethod
    def _shares(cls, value: dict[str, float]) -> dict[str, float]:
        total = sum((Fraction(repr(share)) for share in value.values()), Fraction(0))
        if abs(total - 1) > Fraction(1, 10**6):
            raise ValueError(f"shares must add up to 1, not {float(total):g}")
        if "train" not in value:
            raise ValueError("a split named train is needed; it takes the rest of the key range")
        return value

    @model_validator(mode="after")
    def _source_names(self) -> BuildSpec:
        names = self.source_names()
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two sources are named {twice[0]!r}; give each its own name")
        return self

    def source_names(self) -> list[str]:
        """Return the name of each source, in order: as given, or its kind and position (`parquet-0`)."""
        return [source.name or f"{source.kind}-{i}" for i, source in enumerate(self.sources)]

    def split_shares(self) -> list[tuple[str, float]]:
        """Return (name, share) of each split in the order written, which is part of a version's identity."""
        return list(self.splits.items())

    def identity(self) -> dict[str, Any]:
        """Return the part of the spec that decides the bytes: JSON values, defaults and paths left out."""
        sources = [
            {"name": name} | source.model_dump(exclude_defaults=True, exclude={"path", "name"}) | {"kind": source.kind}
            for name, source in zip(self.source_names(), self.sources, strict=True)
        ]
        tokenizer = self.tokenizer.model_dump(exclude_defaults=True, exclude={"ranks", "encoder"})
        rest = self.model_dump(exclude_defaults=True, exclude={"store", "sources", "tokenizer", "splits"})
        identity: dict[str, Any] = {
            "sources": sources,
            "tokenizer": tokenizer | {"kind": self.tokenizer.kind},
        } | rest
        if self.split_shares() != list(BuildSpec.model_fields["splits"].default.items()):  # their order counts
            identity["splits"] = [[name, share] for name, share in self.split_shares()]
        return identity

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield (key, path) of every path that the spec names, the store first."""
        yield "store", self.store
        for i, source in enumerate(self.sources):
            yield f"sources.{i}.path", source.path
        if isinstance(self.tokenizer, TiktokenTokenizer):
            for key in ("ranks", "encoder"):
                if path := getattr(self.tokenizer, key):
                    yield f"tokenizer.{key}", path

    def resolve(self, folder: Path) -> BuildSpec:
        """Return the spec with every relative local path made absolute from `folder`."""

        def full(path: str) -> str:
            return path if is_absolute(path) else str((folder / Path(path).expanduser()).absolute())

        sources = [source.model_copy(update={"path": full(source.path)}) for source in self.sources]
        tokenizer = self.tokenizer
        if isinstance(tokenizer, TiktokenTokenizer):
            files = {k: full(v) for k in ("ranks", "encoder") if (v := getattr(tokenizer, k))}
            tokenizer = tokenizer.model_copy(update=files)
        return self.model_copy(update={"store": full(self.store), "sources": sources, "tokenizer": tokenizer})


def is_absolute(path: str) -> bool:
    """Return whether `path` is a URL or an absolute local path."""
    return "://" in path or path.startswith("/")


def field_names(location: Sequence[str | int]) -> list[str]:
    """Return the keys that a spec allows at `location`, such as ("documents",) or ("sources", 0, "parquet").

    A union is entered by the value of its `kind`; an unknown location gives an empty list.
    """
    by_kind: dict[str, dict[str, type[BaseModel]]] = {
        "sources": {"parquet": ParquetSource, "jsonl": JsonlSource, "text": TextSource},
        "tokenizer": {"byte": ByteTokenizer, "tiktoken": TiktokenTokenizer},
    }
    if not location:
        return list(BuildSpec.model_fields)
    if location[0] == "documents":
        return list(DocumentRules.model_fields)
    kinds = by_kind.get(str(location[0]), {})
    return next((list(kinds[str(part)].model_fields) for part in location if part in kinds), [])
