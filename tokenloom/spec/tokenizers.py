"""The options of each kind of tokenizer; tokenloom/tokenizers/ encodes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from tokenloom.spec.base import Location, Name, SpecModel, kind_field
from tokenloom.spec.syntax import MODEL_NAME_PATTERN
from tokenloom.storage.formats.manifest import given_options
from tokenloom.wording import closest, did_you_mean

ModelName = Annotated[str, Field(pattern=MODEL_NAME_PATTERN)]


class ByteTokenizer(SpecModel):
    """UTF-8 bytes as ids; end of text is 255, a byte that no UTF-8 text contains."""

    model_config = ConfigDict(title="Bytes")
    kind: Literal["byte"] = kind_field("byte")
    name: Name | None = Field(None, description="Name in the manifest; default: `byte`")


class _LibraryTokenizer(SpecModel):
    operational_fields: ClassVar[tuple[str, ...]] = ("backend",)
    name: Name | None = Field(None, description="Name in the manifest; default: the kind")
    eot: str | None = Field(
        None,
        title="End of text",
        description="Token that ends each document; required if the tokenizer does not define it",
    )
    bos: str | None = Field(None, title="Beginning of text", description="Token before each document; default: none")
    backend: Literal["auto", "reference"] = Field(
        "auto",
        title="Encoder",
        description="A fast encoder where it is proven to give the same ids, or always the tokenizer's library",
    )


_NAMED_FILES = ("llama3", "tekken")  # files of tiktoken known by name


def _named_instead(name: str, allowed: Sequence[str]) -> str:
    """Return the allowed names, preceded by the closest one, or by the encoding of the model with such a name."""
    from tiktoken.model import MODEL_TO_ENCODING

    model = closest(name, [*allowed, *MODEL_TO_ENCODING])
    if model is None or model in allowed:
        return did_you_mean(name, allowed)
    return f"{model} has the encoding {MODEL_TO_ENCODING[model]}. Allowed: {', '.join(allowed)}"


class TiktokenTokenizer(_LibraryTokenizer):
    """A byte-pair encoding of tiktoken, by name or from local files."""

    model_config = ConfigDict(title="tiktoken")
    path_fields: ClassVar[tuple[str, ...]] = ("ranks",)
    kind: Literal["tiktoken"] = kind_field("tiktoken")
    name: Name | None = Field(
        None,
        description="`gpt2`, `cl100k_base`, `o200k_base`, ...; with a file and no pattern: `llama3` or `tekken`; else "
        "a label",
    )
    ranks: Location | None = Field(
        None, title="Ranks file", description="A file `.tiktoken`, `tokenizer.model` of llama3, or `tekken.json`"
    )
    pattern: str | None = Field(
        None, description="With files: how text is split before merging: a name of tiktoken, or a regular expression"
    )
    special_tokens: dict[str, int] = Field({}, description="With files: the ids of the special tokens, by their text")

    @model_validator(mode="after")
    def _one_definition(self) -> TiktokenTokenizer:
        if self.ranks is None:
            self._check_name()
        elif self.pattern is None and (self.name not in _NAMED_FILES or self.special_tokens):
            raise ValueError(
                "a file of ranks needs a pattern: gpt2, cl100k_base, o200k_base or a regular expression; or, without "
                "special_tokens, the name llama3 (for its tokenizer.model) or tekken (for a tekken.json)"
            )
        return self

    def _check_name(self) -> None:
        from tiktoken import list_encoding_names

        if self.name is None or self.name in _NAMED_FILES:
            raise ValueError("give the name of a tiktoken encoding (gpt2), or ranks: its file (tokenizer.model, ...)")
        if self.pattern or self.special_tokens:
            raise ValueError("pattern and special_tokens require ranks: a file of ranks")
        if self.name not in (known := sorted(list_encoding_names())):
            raise ValueError(f"tiktoken has no encoding {self.name!r}. {_named_instead(self.name, known)}")


class HuggingFaceTokenizer(_LibraryTokenizer):
    """A tokenizer.json of the Hugging Face library tokenizers: of a model on the hub, in a folder, or a file."""

    model_config = ConfigDict(title="Hugging Face")
    path_fields: ClassVar[tuple[str, ...]] = ("path",)
    kind: Literal["huggingface"] = kind_field("huggingface")
    name: ModelName | None = Field(
        None, description="A model on the hub, such as `org/model`; with a path, only a label"
    )
    path: Location | None = Field(None, description="File `tokenizer.json`, or a folder that save_pretrained wrote")
    revision: str | None = Field(
        None, min_length=1, description="Branch, tag or commit; default: `main`. Versions record the commit"
    )

    @model_validator(mode="after")
    def _one_place(self) -> HuggingFaceTokenizer:
        if self.path is None and self.name is None:
            raise ValueError("give the name of a model on the Hugging Face Hub (org/model), or path: tokenizer.json")
        if self.path is not None and self.revision is not None:
            raise ValueError("revision belongs to a model on the Hugging Face Hub: remove it, or remove path")
        return self


class SentencePieceTokenizer(_LibraryTokenizer):
    """A model file of SentencePiece."""

    model_config = ConfigDict(title="SentencePiece")
    path_fields: ClassVar[tuple[str, ...]] = ("path",)
    kind: Literal["sentencepiece"] = kind_field("sentencepiece")
    path: Location = Field(title="File", description="Model file, such as `tokenizer.model`")


_SHORT = {"byte": {"kind": "byte"}} | {
    name: {"kind": "tiktoken", "name": name} for name in ("gpt2", "cl100k_base", "o200k_base")
}
_BY_NAME = {
    "type": "string",
    "enum": list(_SHORT),
    "title": "By name",
    "description": "byte: UTF-8 bytes; the others: vocabularies of tiktoken. The other tabs have all options.",
}


def expand_short_name(value: Any) -> Any:
    """Return the mapping for a short name, any other value unchanged; raise ValueError for an unknown name."""
    if not isinstance(value, str):
        return value
    if value not in _SHORT:
        raise ValueError(
            f"not the name of a tokenizer. {_named_instead(value, list(_SHORT))}; for files, or a model on the Hugging "
            "Face Hub, write {kind: huggingface, name: org/model}"
        )
    return dict(_SHORT[value])


def _with_names(schema: dict[str, Any]) -> None:
    """Write the choice as tabs of a form: the first presets nothing, as a form submits an untouched first tab."""
    schema["anyOf"] = [_BY_NAME, *schema.pop("oneOf")]


_OfTexts = ByteTokenizer | TiktokenTokenizer | HuggingFaceTokenizer | SentencePieceTokenizer
_BY_KIND = Field(discriminator="kind", json_schema_extra=_with_names)
_TextTokenizer = Annotated[_OfTexts, _BY_KIND, BeforeValidator(expand_short_name)]
_Id = Annotated[int, Field(ge=0, lt=2**32)]


class IdsTokenizer(SpecModel):
    """What is known of ids that were made elsewhere, for sources of tokens."""

    model_config = ConfigDict(title="Ids")
    kind: Literal["ids"] = kind_field("ids")
    vocab_size: int = Field(ge=1, le=2**32, title="Vocabulary", description="Number of ids; each id is below it")
    eot_id: _Id = Field(title="End of text", description="Id that ends each document")
    bos_id: _Id | None = Field(None, title="Beginning of text", description="Id before each document; default: none")
    name: Name | None = Field(None, description="Name in the manifest; default: `ids`")
    decode: _TextTokenizer | None = Field(None, description="The tokenizer that made the ids, to show them as text")

    @model_validator(mode="after")
    def _in_vocabulary(self) -> IdsTokenizer:
        for name, value in (("eot_id", self.eot_id), ("bos_id", self.bos_id)):
            if value is not None and value >= self.vocab_size:
                raise ValueError(f"{name} {value} is not in the vocabulary [0, {self.vocab_size})")
        return self

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield (field, path) for the paths of `decode`."""
        if self.decode is not None:
            yield from ((f"decode.{field}", path) for field, path in self.decode.paths())

    def with_paths(self, key: str, folder_of: Callable[[str], str]) -> IdsTokenizer:
        """See SpecModel.with_paths."""
        if self.decode is None:
            return self
        return self.model_copy(update={"decode": self.decode.with_paths(f"{key}.decode", folder_of)})

    def identity(self) -> dict[str, Any]:
        """See SpecModel.identity."""
        decode = {} if self.decode is None else self.decode.identity()
        return given_options(self.model_dump(mode="json", exclude={"decode"}) | {"decode": decode})

    def pinned(self, fields: dict[str, Any]) -> IdsTokenizer:
        """See SpecModel.pinned."""
        if self.decode is None:
            return self
        return self.model_copy(update={"decode": self.decode.pinned(fields.get("decode", {}))})


Tokenizer = Annotated[_OfTexts | IdsTokenizer, _BY_KIND, BeforeValidator(expand_short_name)]
