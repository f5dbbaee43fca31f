"""The page of the Python API, from signatures and docstrings, which griffe reads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from griffe import Attribute, Class, Function, Module, Object, ParameterKind, visit

import tokenloom
from scripts.reference_pages.docstrings import body
from scripts.reference_pages.markdown import link
from scripts.reference_pages.public_names import GROUPS, Shown

_ROOT = Path(__file__).parents[2]
_HEAD = """\
# Python

This page lists the classes and functions for training code: what each does, its arguments, and the errors it raises.

`import tokenloom` costs nothing: a name is loaded when it is first used. TokenDataset and Mixture need no torch.
[Training](../guides/training.md) shows them at work. `TokenloomError` is the base of all [errors](errors.md), whose
classes are in `tokenloom.errors`. In signatures, `Batch` is a dict of tensors by name, `Sample` one of numpy arrays,
and `Json` one of JSON values.
"""


def page() -> str:
    """Return the page as Markdown."""
    lines = [_HEAD]
    for title, items in GROUPS.items():
        lines.append(f"- {link(title)}: {', '.join(link(item.name, text=f'`{item.name}`') for item in items)}")
    for title, items in GROUPS.items():
        lines += [f"\n## {title}\n", *map(_entry, items)]
    return "\n".join(lines)


@cache
def module(name: str) -> Module:
    """Return a module of tokenloom as griffe reads it."""
    return visit(name, filepath=_path(name), code=_path(name).read_text(encoding="utf-8"))


def _path(name: str) -> Path:
    path = _ROOT.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def member(item: Shown, name: str) -> Object:
    """Return a member of a class that the page shows, or of its base class."""
    owner: Class = module(item.module)[item.name]
    if name not in owner.members:
        (base,) = owner.bases
        home, _, base_name = base.canonical_path.rpartition(".")  # type: ignore[union-attr]
        owner = module(home)[base_name]
    found: Object = owner[name]
    return found


def _entry(item: Shown) -> str:
    found = module(item.module)[item.name]
    home = "tokenloom" if item.name in tokenloom.__all__ else item.module
    is_record = isinstance(found, Class) and "__init__" not in found.members
    code = _record(item.module, found) if is_record else _signature(item.name, found)
    parts = [
        f"### {item.name}",
        f"```python\nfrom {home} import {item.name}\n\n{code}\n```",
        body(found.docstring.value if found.docstring else ""),
        *(_member(item, name) for name in item.members.split()),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _record(home: str, found: Class) -> str:
    """Return a class without a constructor: the lines of its fields, as they stand in the code, with their comments."""
    code = _path(home).read_text(encoding="utf-8").splitlines()
    fields = [field for field in found.members.values() if isinstance(field, Attribute) and field.annotation]
    numbers = [field.lineno or 0 for field in fields if "property" not in field.labels]
    bases = f"({', '.join(map(str, found.bases))})" if found.bases else ""
    return "\n".join([f"class {found.name}{bases}:", *(code[number - 1] for number in numbers)])


def _member(item: Shown, name: str) -> str:
    found = member(item, name)
    text = body(found.docstring.value if found.docstring else "")
    heading = f"#### `{item.name}.{found.name}`"
    code = f"{found.name}: {found.annotation}" if isinstance(found, Attribute) else _signature(found.name, found)
    return f"{heading}\n\n```python\n{code}\n```\n\n{text}"


def _signature(name: str, found: Object) -> str:
    parameters = list(_parameters(found))
    returns = f" -> {found.returns}" if isinstance(found, Function) and found.returns else ""
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= 76:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){returns}"])


def _parameters(found: Object) -> Iterator[str]:
    had_keyword = False
    assert isinstance(found, Class | Function), found.path
    for parameter in found.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is ParameterKind.keyword_only and not had_keyword:
            had_keyword = True
            yield "*"
        stars = "**" if parameter.kind is ParameterKind.var_keyword else ""
        default = "" if parameter.default is None or stars else f" = {parameter.default}"
        yield f"{stars}{parameter.name}: {parameter.annotation}{default}"
