"""Fast encoders: gigatoken gives the ids of a tokenizer's reference library in a fraction of its time.

No encoder is used without proof. It is *unproven* for a tokenizer with a part that `parts` does not list, and until
`probe` has compared it with the reference library for the vocabulary; `proofs` has the results. `tokenizer` compares a
sample in every build, which ends after a difference.
"""

from __future__ import annotations


class Unproven(Exception):
    """No fast encoder is known to give the ids of a tokenizer; the message says why, as a clause."""
