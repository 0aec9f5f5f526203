"""Sets attributes of modules while a simulation runs: small sizes reach more states in less time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def module_settings(*settings: tuple[Any, str, object]) -> Iterator[None]:
    """Set each attribute; restore all of them at the end, because tests that follow in this process need the real values."""
    before = [(module, name, getattr(module, name)) for module, name, _ in settings]
    try:
        for module, name, value in settings:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
