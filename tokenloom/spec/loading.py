"""Load a spec from a YAML file and overrides; every error names file, line, key, value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenloom.errors import SpecError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.messages import unexpanded_variable
from tokenloom.spec.overrides import apply_override
from tokenloom.spec.validation import validate_spec
from tokenloom.spec.yaml_file import OVERRIDE, YamlFile, key_path, read_yaml_file


def load_spec(path: str | Path, overrides: Sequence[str] = (), overrides_folder: str | Path = ".") -> BuildSpec:
    """Load a spec, with absolute paths.

    Args:
        path: the YAML file, a local path or an fsspec URL. Relative paths in it start from its own folder.
        overrides: "key=value" each; keys are dotted (`documents.min_chars=5`, `sources.0.path=data/*.parquet`), values
            are YAML.
        overrides_folder: the local folder that relative paths in `overrides` start from.

    Raises:
        SpecError: the file can't be read, or contains something that is not allowed.
    """
    file = read_yaml_file(str(path))
    for override in overrides:
        apply_override(file, override)
    spec = validate_spec(file)
    given = [key for key, _ in spec.paths() if file.place(key_path(key)).startswith(OVERRIDE)]
    folders = dict.fromkeys(given, str(overrides_folder))
    _check_variables(spec, file, folders)
    places = {i: file.place(("sources", i)) for i in range(len(spec.sources))}
    return spec.resolve(file.folder, folders).with_source_places(places)


def _check_variables(spec: BuildSpec, file: YamlFile, folders: Mapping[str, str]) -> None:
    """Raise SpecError for a path that contains a shell variable, since nothing expands it."""
    for key, path in spec.paths():
        if variable := unexpanded_variable(path, folders.get(key, file.folder)):
            raise SpecError(
                f"{file.place(key_path(key))}: {key}: variables such as {variable} are not expanded in a spec; "
                f'let the shell expand it: --set {key}="{path}"'
            )
