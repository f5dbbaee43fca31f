"""The shards of a split: their files, their maps, and the rows and batches that are cut from them."""
