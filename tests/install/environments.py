"""Virtual environments for tests of the packages, in which no C compiler can be reached.

Owns the search path without compilers and the calls of pip. Everything is below a folder that the caller gives.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPILERS = re.compile(r"(.*-)?(cc|c89|c99|gcc|g\+\+|c\+\+|clang|clang\+\+|cpp|tcc|icc|cython)(-[\d.]+)?$")
FILES = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "constraints.txt",
)
#: What this process has from its own environment and an installed package must not see.
OWN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "HEADRACE_PURE", "CC", "CFLAGS")


class Environment:
    """A virtual environment and the variables that its programs run with.

    `python` makes a new one; without it the folder has one already.
    """

    def __init__(self, folder: Path, python: str | None = None) -> None:
        self.folder = folder
        self.commands = make_path_without_compilers(folder.parent / "commands")
        self.bin = folder / "bin"
        if python:
            subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)

    @property
    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        return {**kept, "PATH": f"{self.bin}{os.pathsep}{self.commands}", "CC": "/nonexistent/cc"}

    def run(self, *command: str, cwd: Path | None = None, timeout_s: float | None = None) -> str:
        """Run a program of this environment; return what it printed. Fail with its output if it failed."""
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=cwd or self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def install(self, *arguments: str) -> None:
        """Install with pip, and repeat it once: a package index may be away for a moment."""
        command = ("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)
        try:
            self.run(*command, cwd=ROOT)
        except AssertionError:
            self.run(*command, cwd=ROOT)


def make_path_without_compilers(folder: Path) -> Path:
    """Fill a folder with links to every command of the search path that is no compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    for place in os.environ["PATH"].split(os.pathsep):
        if not Path(place).is_dir() or ".venv" in place or "shims" in place:
            continue
        for command in Path(place).iterdir():
            link = folder / command.name
            if COMPILERS.match(command.name) or command.name.startswith(("python", "pip")):
                continue
            if not link.is_symlink() and command.is_file() and os.access(command, os.X_OK):
                link.symlink_to(command)
    assert not any(shutil.which(name, path=str(folder)) for name in ("cc", "gcc", "clang", "cython"))
    return folder


def copy_sources(target: Path) -> Path:
    """Copy what a build reads into a folder of its own. Generated C code is copied too: it takes long to make."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    shutil.copytree(ROOT / "src", target / "src", ignore=ignored)
    shutil.copytree(ROOT / "deploy", target / "deploy")
    for name in FILES:
        shutil.copy(ROOT / name, target / name)
    return target


def reuse_compiled_core(sources: Path) -> None:
    """Put the compiled modules of this environment where a build in these sources looks for its own."""
    folder = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    target = sources / "build" / folder / "headrace" / "_native"
    target.mkdir(parents=True)
    for module in (ROOT / "src" / "headrace" / "_native").glob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
        shutil.copyfile(module, target / module.name)


def build(sources: Path, target: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel of a folder or source distribution, with the setuptools and Cython of this environment."""
    kept = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    flags = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", str(target))
    return subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *flags, str(sources)],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def find_one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found
