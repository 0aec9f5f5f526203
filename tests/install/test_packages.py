"""The packages: their files and metadata, and a build that fails instead of leaving out the compiled core."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import headrace
from install.environments import ROOT, build, copy_sources, find_one

pytestmark = [pytest.mark.xdist_group("install"), pytest.mark.timeout(600)]
EXTRAS = {
    "all",
    "azure",
    "bcrypt",
    "claims",
    "gcs",
    "nkeys",
    "read",
    "s3",
    "server",
    "spark",
    "sql",
    "tables",
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def sdist(sources: Path) -> Path:
    """A source distribution."""
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "sdist"],
        cwd=sources,
        env={**os.environ, "HEADRACE_PURE": "1", "PYTHONPATH": ""},
        capture_output=True,
        check=True,
    )
    return find_one(sources / "dist", "*.tar.gz")


@pytest.fixture(scope="module")
def wheel(sources: Path) -> Path:
    """A wheel without the compiled core."""
    done = build(sources, sources / "from-tree", HEADRACE_PURE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    return find_one(sources / "from-tree", "*.whl")


def hash_members(path: Path) -> dict[str, str]:
    """Return the hash of each file of a wheel; RECORD lists the others."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/RECORD")]
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}


def test_a_source_distribution_has_what_a_build_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tree = {
        str(path.relative_to(ROOT))
        for kind in ("py", "pyi", "pyx", "pxd")
        for path in ROOT.glob(f"src/**/*.{kind}")
    }
    assert tree <= names
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "src/headrace/py.typed"} <= names
    assert not [name for name in names if name.endswith((".c", ".so", ".pyc"))]


def test_a_wheel_of_the_source_distribution_equals_one_of_the_tree(sdist: Path, wheel: Path) -> None:
    done = build(sdist, sdist.parent / "from-sdist", HEADRACE_PURE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert hash_members(find_one(sdist.parent / "from-sdist", "*.whl")) == hash_members(wheel)
    assert wheel.name == f"headrace-{headrace.__version__}-py3-none-any.whl"


def test_the_metadata_are_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Version"] == headrace.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"]
    assert "jetstream" in metadata["Keywords"]
    assert set(metadata.get_all("Provides-Extra") or ()) == EXTRAS
    classifiers = metadata.get_all("Classifier") or []
    for version in ("3.11", "3.12", "3.13", "3.14"):
        assert f"Programming Language :: Python :: {version}" in classifiers
        assert f"cp{version.replace('.', '')}-*" in read_project()["tool"]["cibuildwheel"]["build"]


def read_project() -> dict[str, dict[str, dict[str, list[str]]]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_in_one_place() -> None:
    project = read_project()["project"]
    assert "version" not in project
    assert project["dynamic"] == ["version"]


def test_a_build_without_a_compiler_fails_and_says_what_to_do(tmp_path: Path) -> None:
    sources = copy_sources(tmp_path / "sources")
    done = build(sources, tmp_path / "wheels", CC="/nonexistent/cc")
    assert done.returncode != 0
    assert "HEADRACE_PURE=1" in done.stdout + done.stderr
    assert not list(tmp_path.glob("wheels/*.whl"))
