"""Fast encoders: gigatoken gives the ids of a tokenizer's reference library in a fraction of its time.

No encoder is used without proof. It is *unproven* for a tokenizer with a part that `parts` does not list, and until
`probe` has compared it with the reference library for the vocabulary; `proofs` has the results. `tokenizer` compares a
sample in every build, which ends after a difference.
"""
