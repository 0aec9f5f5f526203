"""Checks for optional packages: a missing one is an error that names the extra to install.

Knows no other module of Headrace.
"""

from __future__ import annotations

from importlib.util import find_spec


def require_extra(extra: str, *packages: str) -> None:
    """Raise ModuleNotFoundError, with the command that installs the extra, unless these packages can be imported."""
    for name in packages:
        if find_spec(name) is None:
            raise ModuleNotFoundError(
                f"the package {name} is not installed: pip install 'headrace[{extra}]'", name=name
            )
