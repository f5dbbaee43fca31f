"""One step of a build each, as plain functions: plan, tokenize, assign, shuffle, check, validate, publish."""
