"""Find the inputs of a build, name its version, and cut the inputs into partitions."""
