"""The files of a version and of its build: shards, document tables, spills, manifests, names, keys."""
