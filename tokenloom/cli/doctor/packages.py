"""What is installed: versions, the packages of each extra, and the fast encoders that are proven for them.

Only the metadata of packages is read, which is faster than importing them and works if an import would fail.
"""

from __future__ import annotations

import platform
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import NamedTuple

from tokenloom import __version__
from tokenloom.cli.doctor.finding import Finding
from tokenloom.cores import num_cores
from tokenloom.wording import counted, first_of

_SHOWN = ("pyarrow", "numpy", "fsspec", "prefect", "torch", "tiktoken", "tokenizers", "sentencepiece", "gigatoken")
_REQUIREMENT = re.compile(r"""([\w.-]+)(?:\[.*\])?\s*([^;]*?)\s*(?:;.*extra == ["']([\w-]+)["'].*)?""")
_NEEDED = ("", "build")  # tokenloom itself, and what a build needs
_NOT_SHOWN = ("dev", "docs", "test")  # for work on tokenloom itself


class _Requirement(NamedTuple):
    name: str
    versions: str  # that are allowed, such as ">=3.8.8,<4"

    def missing(self) -> str | None:
        """Return what is missing, such as "fastapi<0.151 (0.155 is installed)"; None if it is met."""
        installed = installed_version(self.name)
        if installed is None:
            return self.name
        allowed = _allows(self.versions, installed)
        return None if allowed else f"{self.name}{self.versions} ({installed} is installed)"


def installed_version(package: str) -> str | None:
    """Return the version of a package that is installed; None if it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _allows(versions: str, installed: str) -> bool:
    try:
        from packaging.specifiers import SpecifierSet
    except ModuleNotFoundError:  # all packages whose newer versions are refused bring it
        return True
    return SpecifierSet(versions).contains(installed, prereleases=True)


def of_installation() -> Iterator[Finding]:
    """Yield the versions of tokenloom, Python and the packages that decide what a build writes."""
    python = f"Python {platform.python_version()} in {sys.prefix}"
    machine = f"{platform.system()} {platform.machine()}, {counted(num_cores(), 'core')}"
    yield Finding("tokenloom", f"{__version__}, {python}, {machine}")
    found = [f"{name} {each}" for name in _SHOWN if (each := installed_version(name))]
    yield Finding("packages", ", ".join(found))
    if installed_version("torch") is None:
        yield Finding("torch", "not installed; TokenLoader needs it, a build does not: pip install torch")


def of_extras() -> Iterator[Finding]:
    """Yield which extras are installed, and what is missing of tokenloom's own dependencies and of `build`."""
    installed, absent = [], []
    for extra, requirements in _extras().items():
        missing = [each for requirement in requirements if (each := requirement.missing())]
        if not missing:
            installed.append(extra)
        elif extra not in _NEEDED and [each.name for each in requirements] == missing:
            absent.append(extra)
        else:
            reads = ": this installation reads and trains, but can't build" if extra == "build" else ""
            advice = f"pip install 'tokenloom{f'[{extra}]' if extra else ''}'"
            topic = f"extra {extra}" if extra else "dependencies"
            yield Finding(topic, f"missing: {first_of(missing)}{reads}", "problem", advice)
    others = f"; not installed: {', '.join(absent)} (pip install 'tokenloom[NAME]')" if absent else ""
    yield Finding("extras", f"installed: {first_of([*filter(None, installed)])}{others}")


def _extras() -> dict[str, list[_Requirement]]:
    """Return what each extra requires, "" for tokenloom itself; without the extras that it includes."""
    found: dict[str, list[_Requirement]] = defaultdict(list)
    for line in requires("tokenloom") or ():
        if (match := _REQUIREMENT.fullmatch(line)) and match[1] != "tokenloom" and match[3] not in _NOT_SHOWN:
            found[match[3] or ""].append(_Requirement(match[1], match[2]))
    return found


def of_encoders() -> Iterator[Finding]:
    """Yield for which vocabularies the fast encoder is proven, and whether this machine refuses it for some."""
    from tokenloom.tokenizers.fast.machine_check import find_check
    from tokenloom.tokenizers.fast.proofs import Proof, installed_library, shipped_proofs
    from tokenloom.tokenizers.machine_records import kept_records

    topic, library = "fast encoders", installed_library()
    if library is None:
        slow = "gigatoken is not installed: the tokenizers' own libraries encode, several times slower"
        yield Finding(topic, slow, "warning", "pip install 'tokenloom[fast]'")
        return
    shipped = shipped_proofs()
    here = {name: proof for name, proof in shipped.items() if _is_installed(proof.reference)}
    num_own = sum(_is_installed(proof.reference) for proof in kept_records(Proof))
    own = f", and {counted(num_own, 'vocabulary')} proven on this machine" if num_own else ""
    yield Finding(topic, f"{library}, proven for {first_of(sorted(here), 30)}{own}")
    if others := sorted(shipped.keys() - here.keys()):
        libraries = sorted({shipped[name].reference for name in others})
        yield Finding(
            topic,
            f"not proven for {first_of(others, 30)}: the proofs are of {', '.join(libraries)}",
            "warning",
            f"pip install {' '.join(each.replace(' ', '==') for each in libraries)}, or let the first build with such "
            "a tokenizer prove it, which takes a minute",
        )
    for name, proof in here.items():
        if (check := find_check(proof.key, proof)) and check.refused:
            advice = "`tokenloom tokenizer SPEC` checks it again; builds are correct without it, but slower"
            yield Finding(topic, f"{name} is refused on this machine: {check.refused}", "warning", advice)


def _is_installed(library: str) -> bool:
    """Return whether a library with its version, such as "tiktoken 0.14.0", is installed."""
    name, _, wanted = library.partition(" ")
    return installed_version(name) == wanted
