"""The chat template of a build and its arguments, which are part of a version's name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tokenloom.storage.formats.manifest import MANIFEST, Manifest
from tokenloom.storage.formats.records import decode_record
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path

CHAT_RULES = 3  # raise it with every change of the ids or the mask of conversations


@dataclass(frozen=True)
class ChatDefinition:
    """How a build renders its conversations; JSON values only, as they stand in the identity of a version.

    Attributes:
        template: the text of the Jinja template.
        arguments: the keyword arguments of the template.
        date: what `strftime_now` takes for the present day, YYYY-MM-DD; None if a template must not ask.
        special_tokens: the tokens that a template knows by name, such as {"bos_token": "<s>"}.
        stop_tokens: tokens that end a turn of the assistant; empty for the last special token before the next message.
        special_tokens_in_content: what the spelling of a special token in a message becomes: "text", "token", or, with
            "fail", a bad row.
        rules: the rules of the release that renders; other rules may give other ids and classes.
    """

    template: str
    arguments: dict[str, object] = field(default_factory=dict)
    date: str | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)
    stop_tokens: tuple[str, ...] = ()
    special_tokens_in_content: str = "text"
    rules: int = CHAT_RULES

    def json(self) -> dict[str, Any]:
        """Return its fields as JSON values."""
        return asdict(self) | {"stop_tokens": list(self.stop_tokens)}


def definition_of(value: object, place: str = "", field: str = "") -> ChatDefinition:
    """Return the definition whose JSON is `value`, which the file `place` has as `field`; raises FormatError."""
    given = {"rules": 1} | value if isinstance(value, dict) else value
    return decode_record(ChatDefinition, given, place, field)


def version_chat(store: Store, manifest: Manifest) -> ChatDefinition | None:
    """Return what rendered the conversations of a version, None if it has none.

    Raises FormatError for values that no build writes.
    """
    if "chat" not in manifest.spec:
        return None
    place = store.place(version_path(manifest.version, MANIFEST))
    return definition_of(manifest.spec["chat"], place, "spec.chat")
