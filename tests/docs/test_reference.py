"""The generated reference has everything that there is, each with a description, and its examples are valid."""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import tokenloom
from scripts.reference_pages import commands, python_api
from scripts.reference_pages.docstrings import prose
from scripts.reference_pages.markdown import sentence
from scripts.reference_pages.public_names import shown
from scripts.reference_pages.spec_examples import BASE, EXAMPLES
from tests.docs.reference import generated_pages
from tokenloom import errors
from tokenloom.cli.commands import COMMANDS
from tokenloom.cli.output import EXIT_CODES
from tokenloom.cli.parser import command_parsers, help_of, make_parser
from tokenloom.spec.build_spec import BuildSpec, models_by_kind

_ROOT = Path(__file__).parents[2]
_PARSERS = command_parsers(make_parser())
_TOO_SHORT = 12  # characters: "the split" says nothing


def _entries(name: str) -> dict[str, str]:
    """Return the text below each heading of a generated page."""
    text = {path.stem: text for path, text in generated_pages().items()}[name]
    parts = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)
    headings = [heading.strip("`") for heading in parts[1::2]]
    assert len(set(headings)) == len(headings), "two headings have one anchor"
    return dict(zip(headings, parts[2::2], strict=True))


def _described(text: str) -> bool:
    """Return whether an entry says more than facts: code, a type, a default."""
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    prose = [line for line in without_code.splitlines() if line and not line.startswith("*")]
    return len(" ".join(prose)) > _TOO_SHORT


def _keys(model: Any, place: str = "") -> dict[str, list[str]]:
    """Return the descriptions of each key of a spec, by its path; it has several if kinds of a block share a name."""
    found: dict[str, list[str]] = {}
    for name, field in ((field.alias or name, field) for name, field in model.model_fields.items()):
        if name != "kind":
            found.setdefault(f"{place}{name}", []).append(field.description or "")
            for inner in () if name == "decode" else models_by_kind(field).values():  # a tokenizer in a tokenizer
                for key, descriptions in _keys(inner, f"{place}{name}.").items():
                    found.setdefault(key, []).extend(descriptions)
    return found


def test_every_key_of_the_spec_is_described() -> None:
    entries = _entries("spec")
    for key, descriptions in _keys(BuildSpec).items():
        assert all(len(text) > _TOO_SHORT for text in descriptions), f"{key}: its Field needs a description"
        assert all(prose(sentence(text), is_escaped=True) in entries[key] for text in descriptions), key


def test_every_example_of_the_spec_is_valid() -> None:
    blocks = {name for name, field in BuildSpec.model_fields.items() if models_by_kind(field)}
    assert EXAMPLES.keys() == blocks
    base = yaml.safe_load(BASE)
    BuildSpec.model_validate(base)
    for name, text in EXAMPLES.items():
        part = yaml.safe_load(text)
        assert name in part
        BuildSpec.model_validate(base | part)


def test_every_command_and_option_is_described() -> None:
    entries = _entries("commands")
    assert _PARSERS.keys() == COMMANDS.keys()
    for name, parser in _PARSERS.items():
        entry = entries[f"tokenloom {name}"]
        assert _described(entry)
        for action in commands.own_actions(parser):
            what = f"{name} {commands.name_of(action)}"
            assert f"- `{commands.name_of(action)}`: " in entry, what
            assert len(action.help or "") > _TOO_SHORT, f"{what}: say in its help what it is"
            if action.default not in (None, False, [], argparse.SUPPRESS):
                assert "default: " in (action.help or ""), f"{what}: say its default in its help"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_is_accepted_and_shown_by_its_help(name: str) -> None:
    command, text = help_of(name), COMMANDS[name].text
    assert command.description.startswith(f"{text[0].upper()}{text[1:]}.")
    assert command.example.split(" ")[0] == name
    make_parser().parse_args(shlex.split(command.example))
    shown = _PARSERS[name].format_help()
    assert f"\nexample: tokenloom {command.example}\n" in shown
    assert ("exit code 3: " in shown) == bool(command.exit_code_3)


def test_every_exit_code_is_explained() -> None:
    text = _entries("commands")["Exit codes"]
    assert all(f"- **{code}**: {meaning}" in text for code, meaning in EXIT_CODES.items())
    raised = {item.exit_code for item in vars(errors).values() if inspect.isclass(item) and hasattr(item, "exit_code")}
    assert raised <= EXIT_CODES.keys()


def test_every_environment_variable_is_explained() -> None:
    internal = {"TOKENLOOM_UP_STORES", "TOKENLOOM_WORKER"}  # tokenloom sets them for its own processes
    lessons = {"TOKENLOOM_LESSON"}
    modules = [
        path for folder in ("tokenloom", "flows", "storage", "tasks") for path in _ROOT.glob(f"{folder}/**/*.py")
    ]
    named = {name for path in modules for name in re.findall(r"\bTOKENLOOM_[A-Z_]+\b", path.read_text("utf-8"))}
    assert named - internal - lessons == commands.VARIABLES.keys()


def test_every_public_name_and_shown_member_is_described() -> None:
    entries = _entries("python")
    assert {*tokenloom.__all__} - {item.name for item in shown()} == {"TokenloomError"}  # it is on its own page
    for item in shown():
        names = [item.name, *(f"{item.name}.{python_api.member(item, name).name}" for name in item.members.split())]
        assert [name for name in names if not _described(entries[name])] == []
