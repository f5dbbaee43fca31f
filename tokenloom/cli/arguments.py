"""Arguments of the command line, made from the parameters of a command's function, and those that commands share.

    def run(reference: Ref, *, count: Annotated[int, POSITIVE] = 3, out: Output) -> Result:
        '''Show documents.

        Args:
            count: how many documents to show

        Example:
            show store/news --count 5
        '''

A parameter before the `*` is a positional argument, each after it an option: `seq_len` is --seq-len. Its help is its
line below "Args:", followed by its default. A parameter whose type is a dataclass stands for the fields of that class,
which get a heading of their own. An Argument in the annotation says the rest; `out` is not an argument.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

_SECTION = re.compile(r"^(Args|Example|Exit code 3|Raises):\n", re.MULTILINE)  # a heading in a docstring
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.MULTILINE)  # an entry below "Args:"


@dataclass(frozen=True, eq=False)
class OneOf:
    """Options that exclude each other.

    Args:
        required: whether one of them must be given.
    """

    required: bool = False


@dataclass(frozen=True)
class Argument:
    """Details of an argument, besides its name, type and default.

    Args:
        metavar: stands for the value in the usage; None for the name in capitals.
        parse: makes the value from the text, or raises ValueError; None to call the type.
        help: its help; None for its line in the docstring.
        option: the option, if not the name of the parameter.
        choices: the allowed values; None for all.
        one_of: the options that exclude this one, and it them.
    """

    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    help: str | None = None
    option: str | None = None
    choices: Sequence[str] | None = None
    one_of: OneOf | None = None


def add_arguments(target: Any, command: Callable[..., object]) -> None:
    """Add the arguments of a command to its parser, or the fields of a dataclass to a group of arguments."""
    owners = getattr(command, "__mro__", (command,))
    texts = dict(entry for owner in owners for entry in _ENTRY.findall(sections(owner).get("Args", "")))
    kinds, exclusive = get_type_hints(command, include_extras=True), dict[OneOf, Any]()
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(kinds[name]):
            add_arguments(target.add_argument_group(f"the {name}"), kinds[name])
        elif name != "out":
            kind, *details = get_args(kinds[name]) if get_origin(kinds[name]) is Annotated else (kinds[name],)
            argument = next((each for each in details if isinstance(each, Argument)), Argument())
            options = _of_type(kind, argument, parameter)
            options["help"] = _help(argument.help or texts.get(name, ""), parameter.default)
            group = argument.one_of
            if group and group not in exclusive:
                exclusive[group] = target.add_mutually_exclusive_group(required=group.required)
            (exclusive[group] if group else target).add_argument(options.pop("name"), **options)


def call(command: Callable[..., Any], given: argparse.Namespace, **others: Any) -> Any:
    """Call a command with the arguments that its parser read, and others; make a dataclass of its fields likewise."""
    kinds, values = get_type_hints(command), dict(others)
    for name in inspect.signature(command).parameters.keys() - others.keys():
        values[name] = call(kinds[name], given) if is_dataclass(kinds[name]) else getattr(given, name)
    return command(**values)


def option(name: str) -> str:
    """Return the option of a parameter: "seq_len" -> "--seq-len"."""
    return f"--{name.replace('_', '-')}"


def sections(documented: object) -> dict[str, str]:
    """Divide a docstring by its headings: {"": its description, "Args": ..., "Example": ...}."""
    description, *others = _SECTION.split(inspect.getdoc(documented) or "")
    return {"": description, **dict(zip(others[::2], others[1::2], strict=True))}


def _of_type(kind: Any, argument: Argument, parameter: inspect.Parameter) -> dict[str, Any]:
    """Translate a parameter for argparse: the options of add_argument, and the argument's `name` there."""
    if get_origin(kind) is UnionType:
        (kind,) = set(get_args(kind)) - {NoneType}
    is_option = parameter.kind == inspect.Parameter.KEYWORD_ONLY
    options: dict[str, Any] = {"name": parameter.name}
    if is_option:
        options = {"name": argument.option or option(parameter.name), "dest": parameter.name}
    if kind is bool:
        return options | {"action": "store_true"}
    options["metavar"] = argument.metavar
    if get_origin(kind) is Sequence:
        return options | ({"action": "append", "default": []} if is_option else {"nargs": "*"})
    options["choices"] = get_args(kind) if get_origin(kind) is Literal else argument.choices
    options["type"] = _showing_errors(argument.parse) if argument.parse else str if options["choices"] else kind
    if parameter.default is not parameter.empty:
        options |= {"default": parameter.default} | ({} if is_option else {"nargs": "?"})
    return options


def _help(text: str, default: object) -> str:
    """Join a help to one line, and append the default unless the text names it."""
    text = " ".join(text.split())
    is_named = "(default: " in text or default in (None, False, (), inspect.Parameter.empty)
    return text if is_named else f"{text} (default: {default})"


def _showing_errors(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a parser of text: argparse shows the message of an ArgumentTypeError, but not of a ValueError."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def integer_in(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return a parser of integers in [minimum, maximum]."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError as error:
            raise ValueError(f"{text!r} is not an integer") from error
        if not minimum <= value <= maximum:
            raise ValueError(f"{value:,} is not in [{minimum}, {maximum:,}]")
        return value

    return read


def share_of(text: str) -> tuple[int, int]:
    """Return (I, N) of "I/N"; raise ValueError unless 0 <= I < N <= 1,000,000."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count) <= 10**6):
        raise ValueError(f"{text!r} is not I/N with I from 0 to N - 1, such as 3/100")
    return int(index), int(count)


def price_of(text: str) -> dict[str, float]:
    """Return the prices of "get=0.40,put=5.00,hour=1.50"; raise ValueError unless it has these three in this order."""
    found = re.fullmatch(r"get=(\d+\.?\d*),put=(\d+\.?\d*),hour=(\d+\.?\d*)", text)
    if not found:
        raise ValueError(f"{text!r} is not like get=0.40,put=5.00,hour=1.50")
    return dict(zip(("get", "put", "hour"), map(float, found.groups()), strict=True))


def learned(text: str) -> str:
    """Check a policy of masks; raise ValueError if it is not valid."""
    from tokenloom.storage.formats.classes import learned_classes, parse_policy

    learned_classes(parse_policy(text))
    return text


count = integer_in(0, 2**62)
positive = integer_in(1, 2**62)

Ref = Annotated[str, Argument("REF", help="the version: STORE/DATASET@TAG_OR_VERSION (default: @latest)")]
Dataset = Annotated[str, Argument("STORE/DATASET", help="the dataset: its store, and its name there")]
StoreOrDataset = Annotated[str, Argument("STORE[/DATASET]", help="the store: a folder or a URL; or a dataset in it")]
Spec = Annotated[str, Argument("SPEC", help="the YAML file that describes the build")]
Overrides = Annotated[
    Sequence[str],
    Argument(
        "KEY=VALUE",
        option="--set",
        help="override a key, such as documents.min_chars=5; paths start from the current folder; may be repeated",
    ),
]
Limit = Annotated[
    int | None,
    Argument(
        "N",
        positive,
        "a try-out: build only the first N documents of each source; the tag tryout names it, never latest",
    ),
]
Workers = Annotated[
    int | None,
    Argument("N", integer_in(0, 512), "worker processes (default: one per core; 0: no worker processes)"),
]
_WAY = OneOf()
Direct = Annotated[bool, Argument(help="run the same steps without Prefect, whatever is known", one_of=_WAY)]
Prefect = Annotated[
    bool,
    Argument(
        help="run a Prefect flow also if no server is known (default: on the server that PREFECT_API_URL, a profile or "
        "a running `tokenloom up` names; without one, directly)",
        one_of=_WAY,
    ),
]
InShares = Annotated[
    tuple[int, int] | None,
    Argument(
        "I/N",
        share_of,
        "with --direct: do part I, from 0 to N - 1, of the work of a build that N machines share, and publish nothing",
        option="--share",
    ),
]
Price = Annotated[
    dict[str, float] | None,
    Argument("PRICES", price_of, "dollars for a million reads, a million writes, an hour: get=0.40,put=5.00,hour=1.50"),
]
SourceSpec = Annotated[
    str | None,
    Argument("SPEC", help="a spec that says where the sources are now (default: where build.json says they were)"),
]
LEARN = Argument(
    "POLICY",
    learned,
    "of conversations: the tokens that a model learns: assistant, last, all, or roles separated by commas "
    "(default: assistant)",
)
Tag = Annotated[str, Argument(help="the tag")]
Reason = Annotated[str, Argument("TEXT", help="why the tag moves, for its log")]
AllowTryout = Annotated[bool, Argument(help="allow latest to name a try-out, a version that was built with --limit")]
