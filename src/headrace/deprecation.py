"""Old names of the public Python API: they work for one more release, and warn.

Owns how an old name leads to the new one. Invariant: an old name gives the very object that the new one does, so
`except`, `isinstance` and pickles made through either agree. Type checkers see the new names only: modules set their
`__getattr__` under `if not TYPE_CHECKING`, so that a misspelt import is still found. Must not import anything of Headrace
before an old name is used.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed_names(
    module: str, names: Mapping[str, str], otherwise: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """A `__getattr__` for `module`: `names` has for each old name the new one, with its module (`package.module:Name`)
    when that is another; `otherwise` is asked for all other names.
    """

    def get_renamed(name: str) -> Any:
        if name in names:
            target, _, new = names[name].rpartition(":")
            warn_renamed(f"{module}.{name}", f"{target or module}.{new}", stacklevel=3)
            return getattr(import_module(target or module), new)
        if otherwise is not None:
            return otherwise(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get_renamed


class RenamedAttribute:
    """The old name of a method, property or attribute of a class."""

    def __init__(self, new: str) -> None:
        self._new = new
        self._old = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, instance: Any, owner: type) -> Any:
        self._warn(owner)
        return getattr(owner if instance is None else instance, self._new)

    def __set__(self, instance: Any, value: Any) -> None:
        self._warn(type(instance))
        setattr(instance, self._new, value)

    def _warn(self, owner: type) -> None:
        warn_renamed(f"{owner.__name__}.{self._old}", f"{owner.__name__}.{self._new}", stacklevel=4)


def renamed_parameter(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function whose parameter `new` may still be given as keyword `old`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if old in kwargs:
                name = function.__name__
                if new in kwargs:
                    raise TypeError(f"{name}() got both {new!r} and {old!r}, its old name")
                warn_renamed(f"{name}({old}=)", f"{name}({new}=)", stacklevel=3)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def warn_renamed(old: str, new: str, *, stacklevel: int) -> None:
    """Say that `old` is called `new` now; `stacklevel` as in `warnings.warn`, seen from the caller."""
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=stacklevel)
