"""Fast encoders: gigatoken gives the ids of a tokenizer's reference library in a fraction of its time.

No encoder is used without proof. It is *unproven* for a tokenizer with a part that `known_parts`, `byte_fallback` or
`sentencepiece_parts` does not list. `probe` compares it with the reference library once per vocabulary; until then it
is *pending*, and after a difference it is *refused*. `tokenizer` compares a sample in every build; after a difference
it is *distrusted* for the dataset.
"""
