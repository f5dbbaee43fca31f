"""The steps of a build: plan, tokenize, assign, shuffle, check, validate, publish."""
