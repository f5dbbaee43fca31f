"""`tokenloom init`: write a commented spec that reads given files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from tokenloom.cli.arguments import Argument
from tokenloom.cli.output import Output, Result
from tokenloom.errors import SpecError, TokenloomError
from tokenloom.spec.syntax import escaped
from tokenloom.wording import printable_line

_SPEC_ENDS = (".yaml", ".yml")
_COMMENT_COLUMN = 36
_CHAT = "chat: {template: chatml}                                  # or llama3, ...; tokenizer: the one of a model"


def starter_spec() -> str:
    """Read the spec that shows every kind of source, and all keys with their default values."""
    return resources.files("tokenloom.cli.commands").joinpath("starter.yaml").read_text(encoding="utf-8")


def init(files: Annotated[Sequence[str], Argument("FILES")], *, out: Output) -> Result:
    """Write a commented spec that reads given files.

    It looks at names and first rows: kind, text, conversations and their layout, id. Without files, it writes a starter
    spec.

    Args:
        files: files, folders and patterns to read; a name that ends in .yaml is the spec to write, which must not exist
            (default: tokenloom.yaml)

    Example:
        init data/*.parquet news.yaml
    """
    *others, path = [name for name in files if name.endswith(_SPEC_ENDS)] or ["tokenloom.yaml"]
    if others:
        raise SpecError(f"{others[0]} and {path}: two specs to write; name one")
    if Path(path).exists():
        raise SpecError(f"{path}: the file exists; choose another name")
    inputs = [name for name in files if name != path]
    text, sources = _spec_of(inputs, path, out) if inputs else (starter_spec(), [])
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise SpecError(f"{path}: the file exists; choose another name") from error
    except OSError as error:
        raise TokenloomError(f"{path}: can't be written: {error.strerror}") from error
    first = "" if inputs else "set its sources, then "
    out.line(f"wrote {path}: {first}run `tokenloom plan {quote(path)}` and `tokenloom build {quote(path)}`")
    return Result({"path": path, "sources": sources})


def _spec_of(inputs: list[str], path: str, out: Output) -> tuple[str, list[dict[str, Any]]]:
    """Write a spec that reads some files; return it and its sources."""
    from tokenloom.tasks.proposal import propose

    proposals, notes = propose(inputs)
    sources = [one.source | {"path": _relative(one.source["path"], Path(path).absolute().parent)} for one in proposals]
    lines = []
    for one, source in zip(proposals, sources, strict=True):
        lines.append(f"  - {_yaml(source)}" + (f"  # {printable_line(one.note)}" if one.note else ""))
        out.line(f"{source['kind']} {source['path']}: {one.files}{_described(source)}{one.note and f' ({one.note})'}")
    for note in notes:
        out.line(note)
    comments = [f"  # {printable_line(note)}" for note in notes]
    before, _, rest = starter_spec().partition("sources:")
    text = "\n".join([f"{_named(before, inputs, path)}sources:", *lines, *comments, rest[rest.index("\ntokenizer:") :]])
    if any("messages" in source for source in sources):
        text = re.sub("(?m)^# chat: .*$", _CHAT, text)
    return text, sources


def _named(before: str, inputs: list[str], path: str) -> str:
    """Name the dataset in the start of a spec: that of the spec, or of the first file or folder."""
    named = Path(path).stem if Path(path).name != "tokenloom.yaml" else Path(inputs[0].split("*")[0]).absolute().name
    name = re.sub("[^a-z0-9._-]+", "-", named.split(".")[0].lower()).lstrip("0123456789._-")[:64].rstrip("-")
    return re.sub("dataset: news *", f"dataset: {name or 'data'}".ljust(_COMMENT_COLUMN - 1) + " ", before)


def _relative(path: str, folder: Path) -> str:
    """Make a path relative to the folder of the spec, if it is in it."""
    start = f"{escaped(str(folder))}/"
    return path.removeprefix(start) if "://" not in path else path


def _yaml(source: dict[str, Any]) -> str:
    import yaml

    options = {"kind": source["kind"], "path": source["path"]} | source
    return yaml.safe_dump(options, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9).strip()


def _described(source: dict[str, Any]) -> str:
    """Describe the columns that a source reads: ", text body, id url"."""
    return "".join(
        f", {key} {source[key]!r}" for key in ("text", "messages", "layout", "id", "separator") if key in source
    )
