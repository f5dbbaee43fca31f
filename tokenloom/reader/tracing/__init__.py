"""Which documents are in a batch, and which steps see a document.

records     what both return, as JSON
samples     samples, and the positions and steps of a stream, to documents
sightings   the inverse: tokens of a shard to samples, positions, and steps of ranks

A document is in a sample if at least one of the sample's T + 1 tokens is one of its tokens. So the token that two
neighbours of "concat" share belongs to both of them: a document that begins with it is in both.
"""
