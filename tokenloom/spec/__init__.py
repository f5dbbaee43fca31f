"""The spec of a build: the options of a YAML file or a form, validated. Workers import no pydantic."""
