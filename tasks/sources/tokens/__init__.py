"""Files of tokens, one module a format: what is in a file, and where its documents are."""
