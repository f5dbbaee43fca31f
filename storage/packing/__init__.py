"""How the tokens of a shard become rows, and how many samples that gives."""
