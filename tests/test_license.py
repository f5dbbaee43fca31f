"""The license of the project, and of what an installation of it brings along."""

from __future__ import annotations

import hashlib
import re
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

_ROOT = Path(__file__).parent.parent
_APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"  # of LICENSE-2.0.txt of apache.org
# Each may be used by a program under Apache-2.0; MPL-2.0 covers its own files alone.
_ALLOWED = re.compile(r"\b(MIT|0?BSD|Apache|ISC|PSF|MPL|Mozilla|Zlib|CC0|CNRI-Python|Artistic)\b")


def _installed_with(name: str, extras: frozenset[str]) -> dict[str, Distribution]:
    """Return the distributions that an installation of `name` with `extras` brings along, by name, and itself."""
    found: dict[str, Distribution] = {}
    seen, pending = set(), [(name, extras)]
    while pending:
        name, extras = each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        found[name] = distribution(name)
        for text in found[name].requires or ():
            required = Requirement(text)
            marker = required.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                canonical = re.sub("[-_.]+", "-", required.name).lower()
                pending.append((canonical, frozenset(required.extras)))
    return found


def _fields(package: Distribution, name: str) -> list[str]:
    return package.metadata.get_all(name) or []


def _is_allowed(package: Distribution) -> bool:
    """Return whether a package's license is allowed; of alternatives, one must be."""
    if expression := "".join(_fields(package, "License-Expression")):
        return all(_ALLOWED.search(part) for part in re.sub("[()]", "", expression).split(" AND "))
    classifiers = [each for each in _fields(package, "Classifier") if each.startswith("License ::")]
    licenses = [each.partition("\n")[0] for each in _fields(package, "License")]
    return any(map(_ALLOWED.search, [*classifiers, *licenses]))


def test_the_project_is_under_apache_2() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert hashlib.sha256((_ROOT / "LICENSE").read_bytes()).hexdigest() == _APACHE_2
    for page in ("README.md", "docs/project/design.md"):
        assert "Apache-2.0" in (_ROOT / page).read_text(), page


@pytest.mark.parametrize("extras", [(), ("build",)])
def test_no_dependency_forbids_apache_2(extras: tuple[str, ...]) -> None:
    packages = _installed_with("tokenloom", frozenset(extras))
    del packages["tokenloom"]
    assert len(packages) > (100 if extras else 3)
    refused = {name for name, package in packages.items() if not _is_allowed(package)}
    assert not refused, {name: _fields(packages[name], "License") for name in refused}
