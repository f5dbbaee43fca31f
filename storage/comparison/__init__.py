"""Compare two versions document by document, and list how their specs, tokenizers and inputs differ."""
