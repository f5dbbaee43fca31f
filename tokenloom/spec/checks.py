"""The gates of a spec: what a finished version must hold to be published. They are not part of its identity."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tokenloom.spec.base import SpecModel

_Share = Annotated[float, Field(ge=0, le=1)]
_Change = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_THAN_LATEST = "from the version that `latest` names; 0.2 is 20 %"


def _gate(title: str, description: str, **limits: Any) -> Any:
    return Field(None, title=title, description=description, **limits)


class Checks(SpecModel):
    """What a finished version must hold; a version that fails a check is kept, but not published."""

    min_documents: int | None = _gate("Minimum documents", "Fewest documents in all splits together", ge=1)
    min_tokens: int | None = _gate("Minimum tokens", "Fewest tokens in all splits together", ge=1)
    max_duplicate_share: _Share | None = _gate(
        "Maximum share of duplicates", "Largest share of duplicates in the rows read; 0.1 is 10 %"
    )
    max_quarantined_share: _Share | None = _gate(
        "Maximum share of quarantined rows", "Largest share of skipped bad rows in the rows read; 0.1 is 10 %"
    )
    max_filtered_share: _Share | None = _gate(
        "Maximum share of filtered rows", "Largest share of rows in the rows read that a rule or filter leaves out"
    )
    max_token_drift: _Change | None = _gate(
        "Maximum drift of tokens", f"Largest relative change of the number of tokens {_THAN_LATEST}"
    )
    max_document_drift: _Change | None = _gate(
        "Maximum drift of documents", f"Largest relative change of the number of documents {_THAN_LATEST}"
    )
    max_bytes_per_token_drift: _Change | None = _gate(
        "Maximum drift of bytes per token", f"Largest relative change of the bytes per token {_THAN_LATEST}"
    )
    max_length_drift: _Share | None = _gate(
        "Maximum drift of document lengths",
        "Largest distance (total variation) of the histogram of lengths to that of the version that `latest` names",
    )
    max_documents_without_target: int | None = _gate(
        "Maximum conversations without a target",
        "Most conversations of which nothing is learned, with those that are dropped",
        ge=0,
    )
    min_learned_share: _Share | None = _gate(
        "Minimum learned share", "Smallest share of learned tokens in those of conversations; 0.1 is 10 %"
    )
    stop_token_learned: bool | None = _gate(
        "Stop token is learned", "Whether a stop token must end every turn of the assistant"
    )
    no_doubled_bos: bool | None = _gate(
        "No doubled beginning", "Whether no conversation may begin with two beginning-of-text tokens"
    )

    def limits(self) -> dict[str, float]:
        """Return the checks that are set, and their limits: 1 for those that only hold or not."""
        found = self.model_dump(exclude_none=True)
        return {name: 1 if value is True else value for name, value in found.items() if value is not False}
