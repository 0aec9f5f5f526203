"""Saved connections: the `nats` tool's context files, read and written as that tool does.

A context is `~/.config/nats/context/NAME.json`; the selected one's name stands in `~/.config/nats/context.txt`. Owns the
files and their fields; fields that are not known here are kept as they are.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from headrace.cli.failures import FAILED, MISUSED, NOT_FOUND, Failure

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


def folder() -> Path:
    """Where the `nats` tool keeps its configuration."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "nats"


def _file(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise Failure(f"{name!r} cannot name a context: letters, digits and . _ - @ can", MISUSED)
    return folder() / "context" / f"{name}.json"


def names() -> list[str]:
    return sorted(path.stem for path in (folder() / "context").glob("*.json"))


def selected() -> str:
    """The name of the selected context; empty if there is none."""
    try:
        return (folder() / "context.txt").read_text().strip()
    except OSError:
        return ""


def load(name: str) -> dict[str, Any]:
    path = _file(name)
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise Failure(f"there is no context {name!r}; 'headrace context ls' lists them", NOT_FOUND) from None
    except (OSError, ValueError) as error:
        raise Failure(f"context {name!r} cannot be read: {error}", FAILED) from None
    if not isinstance(found, dict):
        raise Failure(f"context {name!r} cannot be read: {path} holds no JSON object", FAILED)
    return found


def save(name: str, values: dict[str, Any]) -> None:
    """Written whole or not at all, readable by its owner only: it may hold secrets."""
    path = _file(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(path, json.dumps(values, indent=2) + "\n")


def select(name: str) -> None:
    load(name)
    _write(folder() / "context.txt", name)


def remove(name: str) -> None:
    load(name)
    _file(name).unlink()
    if selected() == name:
        (folder() / "context.txt").unlink()


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
