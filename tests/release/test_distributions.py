"""What is in the sdist and the wheel, and what PyPI shows of them."""

from __future__ import annotations

import email
import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import tokenloom
from tests.builders.distributions import CONSTRAINTS, ROOT, Distributions, uv
from tests.counts import FULL, full_only

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_FOLDERS: dict[str, str] = _PROJECT["tool"]["setuptools"]["package-dir"]
_SOURCE = re.escape(_PROJECT["project"]["urls"]["Source"])
_DATA = re.compile(r"prefect.yaml|py.typed|.*\.(html|jinja|css|json|svg|txt|yaml)")


@pytest.fixture(scope="module")
def packaged(distributions: Distributions) -> set[str]:
    """The names in the wheel that the tracked files say: modules, and data beside them."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = set()
    for name in tracked.stdout.splitlines():
        folder, _, rest = name.partition("/")
        if rest and folder in ("tokenloom", *_FOLDERS.values()) and not (ROOT / name).is_dir():
            inside = name.removeprefix("tokenloom/")
            if name.endswith(".py") or _DATA.fullmatch(Path(name).name):
                found.add(f"tokenloom/{inside}")
    return found


def test_the_wheel_contains_every_module_and_only_tokenloom(distributions: Distributions, packaged: set[str]) -> None:
    names = zipfile.ZipFile(distributions.wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == packaged
    assert len(set(names)) == len(names)


def test_the_sdist_has_what_a_wheel_needs_and_no_tests(distributions: Distributions, packaged: set[str]) -> None:
    with tarfile.open(distributions.sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members if not member.isdir()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "setup.py"} <= names
    assert not [name for name in names if re.match("tests|docs|benchmarks|scripts", name)]
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert len([name for name in names if name.endswith(".py")]) - 1 == len([n for n in packaged if n.endswith(".py")])


def test_every_link_of_the_description_leads_to_a_file_of_this_version(distributions: Distributions) -> None:
    archive = zipfile.ZipFile(distributions.wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(archive.read(name))
    text = metadata.get_payload()
    assert isinstance(text, str)
    targets = re.findall(r"""(?:\]\(|(?:src|srcset|href)=")([^)"\s#]+)""", text)
    ours = [re.fullmatch(rf"{_SOURCE}/(raw|blob)/v{tokenloom.__version__}/(.+)", target) for target in targets]
    assert any(match and match[1] == "raw" for match in ours)
    for target, match in zip(targets, ours, strict=True):
        assert match is None or (ROOT / match[2]).exists(), target
        assert match or re.match("https?://", target), target


def test_the_version_stands_in_pyproject_alone() -> None:
    version = _PROJECT["project"]["version"]
    assert tokenloom.__version__ == version
    sources = [path for folder in ("tokenloom", *_FOLDERS.values()) for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in sources if f'"{version}"' in path.read_text(encoding="utf-8")] == []


@pytest.mark.slow
def test_the_extras_can_be_installed_on_the_lowest_release_of_each_python(tmp_path: Path) -> None:
    project = _PROJECT["project"]
    lowest = project["requires-python"].removeprefix(">=")
    minors = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    extras = [word for extra in project["optional-dependencies"] if extra != "docs" for word in ("--extra", extra)]
    assert any(lowest.startswith(minor) for minor in minors)
    for minor in minors if FULL else minors[:1]:
        version = lowest if lowest.startswith(minor) else f"{minor}.0"
        resolve = ("pip", "compile", "--no-python-downloads", "--python-version", version, ROOT / "pyproject.toml")
        uv(*resolve, *extras, *CONSTRAINTS, "--output-file", tmp_path / version)


@full_only
def test_pypi_would_accept_them(distributions: Distributions) -> None:
    uv("tool", "run", "twine", "check", "--strict", *distributions)
