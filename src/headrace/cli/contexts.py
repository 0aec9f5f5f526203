"""Saved connections: the `nats` tool's context files, read and written as that tool does.

A context is `~/.config/nats/context/NAME.json`; `~/.config/nats/context.txt` has the name of the selected one. Owns the
files and their fields; unknown fields are preserved.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from headrace.cli.exit_codes import FAILED, NOT_FOUND, USAGE_ERROR, CliError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


def get_config_folder() -> Path:
    """Return where the `nats` tool keeps its configuration."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "nats"


def _get_path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise CliError(f"invalid context name {name!r}: use letters, digits and . _ - @", USAGE_ERROR)
    return get_config_folder() / "context" / f"{name}.json"


def list_names() -> list[str]:
    return sorted(path.stem for path in (get_config_folder() / "context").glob("*.json"))


def get_selected() -> str:
    """Return the name of the selected context; empty if there is none."""
    try:
        return (get_config_folder() / "context.txt").read_text().strip()
    except OSError:
        return ""


def load(name: str) -> dict[str, Any]:
    path = _get_path(name)
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise CliError(
            f"context {name!r} not found; list contexts with 'headrace context ls'", NOT_FOUND
        ) from None
    except (OSError, ValueError) as error:
        raise CliError(f"cannot read context {name!r}: {error}", FAILED) from None
    if not isinstance(found, dict):
        raise CliError(f"cannot read context {name!r}: {path} does not contain a JSON object", FAILED)
    return found


def save(name: str, values: dict[str, Any]) -> None:
    """Write a context atomically, readable by its owner only, because it may contain secrets."""
    path = _get_path(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write_atomically(path, json.dumps(values, indent=2) + "\n")


def select(name: str) -> None:
    load(name)
    _write_atomically(get_config_folder() / "context.txt", name)


def remove(name: str) -> None:
    load(name)
    _get_path(name).unlink()
    if get_selected() == name:
        (get_config_folder() / "context.txt").unlink()


def _write_atomically(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
