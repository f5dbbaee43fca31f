"""What commands return: dataclasses whose fields `--json` prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a command returns; `--json` prints its fields."""

    @property
    def exit_code(self) -> int:
        """The exit code of a command that raised no error."""
        return 0

    def to_json(self) -> Json:
        """Return the object that `--json` prints."""
        return asdict(self)


@dataclass(frozen=True)
class JsonResult(Result):
    """A result that is JSON already, such as a manifest."""

    value: Json

    def to_json(self) -> Json:
        """Return the object that `--json` prints."""
        return self.value
