"""Types of command-line arguments, and arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tokenloom.wording import seconds_of


def add_reference(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a version."""
    parser.add_argument("reference", metavar="REF", help="the version: STORE/DATASET@TAG_OR_VERSION (default: @latest)")


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a dataset."""
    parser.add_argument("dataset", metavar="STORE/DATASET", help="the dataset: its store, and its name there")


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a store or a dataset in it."""
    parser.add_argument("store", metavar="STORE[/DATASET]", help="the store: a folder or a URL; or a dataset in it")


def add_spec(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a spec and change it."""
    add_whole_spec(parser)
    parser.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help="a try-out: build only the first N documents of each source; the tag tryout names it, never latest",
    )


def add_whole_spec(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a spec and override its keys."""
    parser.add_argument("spec", metavar="SPEC", help="the YAML file that describes the build")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key, such as documents.min_chars=5; paths start from the current folder; may be repeated",
    )


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say where a build runs."""
    add_workers(parser)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--direct", action="store_true", help="run the same steps without Prefect, whatever is known")
    ways.add_argument(
        "--prefect",
        action="store_true",
        help="run a Prefect flow also if no server is known (default: on the server that PREFECT_API_URL, a profile or "
        "a running `tokenloom up` names; without one, directly)",
    )


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says how many processes work."""
    parser.add_argument(
        "--workers",
        type=integer_in(0, 512),
        metavar="N",
        help="worker processes (default: one per core; 0: no worker processes)",
    )


def add_source_spec(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says where the sources of a version are now."""
    parser.add_argument(
        "--spec",
        metavar="SPEC",
        help="a spec that says where the sources are now (default: where build.json says they were)",
    )


def add_learn(parser: argparse.ArgumentParser, shown: str) -> None:
    """Add the argument that says what of conversations is learned; `shown` says of what use that is."""
    parser.add_argument(
        "--learn",
        type=learn_argument,
        default="assistant",
        metavar="POLICY",
        help=f"{shown}: assistant, last, all, or roles separated by commas (default: assistant)",
    )


def learn_argument(text: str) -> str:
    """Return a policy of masks as it is given."""
    from tokenloom.storage.formats.classes import learned_classes, parse_policy

    try:
        learned_classes(parse_policy(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what `tokenloom gc` keeps."""
    parser.add_argument(
        "--keep-last",
        type=integer_in(0, 10**6),
        default=3,
        metavar="N",
        help="keep the N versions that were published last (default: 3)",
    )
    parser.add_argument(
        "--grace",
        type=duration_argument,
        default=duration_argument("14d"),
        metavar="TIME",
        help="keep what was written less than this time ago: 12h, 30m, 14d (default: 14d)",
    )


def duration_argument(text: str) -> float:
    """Return a time such as 24h, 30m, 7d, 45s or 0 in seconds."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def number_up_to(maximum: float) -> Callable[[str], float]:
    """Return the type of a number in [0, maximum], which may be a fraction."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
        if not 0 <= value <= maximum:
            raise argparse.ArgumentTypeError(f"{text} is not in [0, {maximum:,.0f}]")
        return value

    return number


def integer_in(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return the type of an integer in [minimum, maximum]."""

    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from error
        if not minimum <= value <= maximum:
            raise argparse.ArgumentTypeError(f"{value:,} is not in [{minimum}, {maximum:,}]")
        return value

    return integer


count = integer_in(0, 2**62)
positive = integer_in(1, 2**62)


def utf8(text: str) -> str:
    """Return a text whose bytes on the command line were UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # Python makes a lone surrogate of any other byte (PEP 383)
        raise argparse.ArgumentTypeError(f"{text!r} is not valid UTF-8; convert the text to UTF-8") from error
    return text
