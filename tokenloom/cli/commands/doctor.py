"""`tokenloom doctor`: what is installed, what this machine allows, what answers, and what to do about it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from tokenloom.cli.argument_types import utf8
from tokenloom.cli.doctor import machine, packages, services
from tokenloom.cli.doctor.finding import Finding, failed
from tokenloom.cli.exit_codes import NO
from tokenloom.cli.output import Output, Styled
from tokenloom.cli.results import Json, Result
from tokenloom.errors import named_message_of
from tokenloom.wording import counted

_CODES = {"ok": (32,), "warning": (33,), "problem": (1, 31)}  # green, yellow, bold red
_TOPIC_WIDTH = 20
_BUILDS = ("prefect", "pydantic")  # without them there is no server to ask


@dataclass(frozen=True)
class DoctorResult(Result):
    """What was found, in the order in which it was looked at."""

    findings: list[Finding]

    def count(self, status: str) -> int:
        """Return how many findings have a status."""
        return sum(finding.status == status for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """Return 3 if a build would fail here, else 0."""
        return NO if self.count("problem") else 0

    def to_json(self) -> Json:
        """Return the object that `--json` prints."""
        return {**super().to_json(), "problems": self.count("problem"), "warnings": self.count("warning")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("stores", nargs="*", type=utf8, metavar="STORE", help="a store to list and write to")


def run(stores: Sequence[str], out: Output) -> DoctorResult:
    """Look at everything, and print each finding as soon as it is there.

    Args:
        stores: paths or URLs of stores; nothing is left in them.
        out: prints the findings.
    """
    findings = []
    for finding in _findings(stores):
        _print(out, finding)
        findings.append(finding)
    result = DoctorResult(findings)
    ready = "a build would fail here" if result.exit_code else "ready to build"
    counts = f"{counted(result.count('problem'), 'problem')}, {counted(result.count('warning'), 'warning')}"
    out.line(f"{ready}: {counts}")
    return result


def _findings(stores: Sequence[str]) -> Iterator[Finding]:
    yield from _guarded("installation", packages.of_installation)
    yield from _guarded("extras", packages.of_extras)
    if all(map(find_spec, _BUILDS)):
        yield from _guarded("fast encoders", packages.of_encoders)
    yield from _guarded("limits", machine.of_limits)
    yield from _guarded("caches", machine.of_caches)
    for store in stores:
        yield from _guarded(f"store {store}", partial(services.of_store, store))
    if all(map(find_spec, _BUILDS)):
        yield from _guarded("Prefect's server", services.of_prefect)


def _guarded(topic: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield findings; an error of a library becomes a problem, so that the other checks still run."""
    try:
        yield from look()
    except Exception as error:  # noqa: BLE001  (of any library)
        yield failed(topic, named_message_of(error))


def _print(out: Output, finding: Finding) -> None:
    text = f"{finding.topic:<{_TOPIC_WIDTH}} {finding.found}"
    out.styled([Styled(f"{finding.status:<8}", _CODES[finding.status]), Styled(text)])
    if finding.advice:
        out.line(f"{'':<8}{'':<{_TOPIC_WIDTH}} -> {finding.advice}")
