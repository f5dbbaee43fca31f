"""The shards of a split, and the rows that samples are cut from.

split_samples   how many samples a split has, and where their tokens are
shard_files     where the files of shards are: in a folder, or in the cache of a remote store
open_shards     which shards are mapped
one_shard       one of them: its bytes, with or without a map, offsets and samples; or the mask beside it
disk_reads      how much of a cold file to read at a time
rows            where the pieces of rows are, and where documents begin in them: pure arithmetic
window          the tokens of consecutive rows, and their classes
targets         which of their labels a model learns
batch_format    what a batch holds
"""
