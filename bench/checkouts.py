"""Checkouts to run a server from: a folder as it is, or a git revision in a temporary worktree; the compiled core
is built in both.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class CheckoutError(Exception):
    """A checkout cannot be used; the text says why."""


@dataclass(frozen=True)
class Checkout:
    """Source code to run; `name` is the user's argument, `commit` identifies the code."""

    name: str
    folder: Path
    commit: str

    @property
    def source(self) -> Path:
        return self.folder / "src"

    def environment(self, hash_seed: int = 0) -> dict[str, str]:
        """Variables under which the interpreter imports `headrace` from this checkout."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**kept, "PYTHONPATH": str(self.source), "PYTHONHASHSEED": str(hash_seed)}


@contextlib.contextmanager
def checked_out(names: list[str], build: bool = True) -> Iterator[list[Checkout]]:
    """Resolve names to checkouts and build them; temporary worktrees are removed on exit."""
    with contextlib.ExitStack() as stack:
        by_folder: dict[str, Checkout] = {}
        found = []
        for name in names:
            key = str(Path(name).resolve()) if _is_folder(name) else commit_of(ROOT, name)
            if key not in by_folder:
                checkout = stack.enter_context(_checkout(name, key))
                if build or not _is_folder(name):
                    build_kernel(checkout)
                check_import(checkout)
                by_folder[key] = checkout
            found.append(Checkout(name, by_folder[key].folder, by_folder[key].commit))
        yield found


@contextlib.contextmanager
def _checkout(name: str, key: str) -> Iterator[Checkout]:
    if _is_folder(name):
        yield Checkout(name, Path(key), describe(Path(key)))
        return
    with tempfile.TemporaryDirectory(prefix="ab-") as parent:
        folder = Path(parent, key[:12])
        git(ROOT, "worktree", "add", "--quiet", "--detach", str(folder), key)
        try:
            yield Checkout(name, folder, key)
        finally:
            git(ROOT, "worktree", "remove", "--force", str(folder))


def _is_folder(name: str) -> bool:
    return Path(name, "src", "headrace").is_dir()


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
    if done.returncode:
        raise CheckoutError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def commit_of(repository: Path, revision: str) -> str:
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except CheckoutError:
        raise CheckoutError(f"{revision!r} is neither a checkout of Headrace nor a git revision") from None


def describe(folder: Path) -> str:
    """Return the commit of a folder, marked if the folder differs from it."""
    try:
        return git(folder, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    except CheckoutError:
        return "no commit"


def build_kernel(checkout: Checkout) -> None:
    """Build in place what the checkout's own setup.py names; a module that did not compile is an error."""
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=checkout.folder,
        env=checkout.environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise CheckoutError(f"{checkout.name}: setup.py build_ext failed:\n{done.stderr[-2000:]}")


def check_import(checkout: Checkout) -> None:
    """Raise CheckoutError if the interpreter imports another checkout, or a module is not compiled."""
    code = "import headrace; print(headrace.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=checkout.environment(), capture_output=True, text=True
    )
    if not Path(done.stdout.strip() or "/").is_relative_to(checkout.source):
        raise CheckoutError(f"{checkout.name}: headrace is imported from {done.stdout or done.stderr}")
    for source in checkout.source.rglob("*.pyx"):
        if not list(source.parent.glob(f"{source.stem}.*.so")):
            raise CheckoutError(f"{checkout.name}: {source.name} is not compiled; is a C compiler missing?")
