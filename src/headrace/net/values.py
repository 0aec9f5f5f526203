"""How the values of a configuration file are read: texts, numbers, durations, sections whose keys are all known.

Owns the complaints about values. What the keys mean is for `settings` and its sections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from headrace.durations import duration_ns
from headrace.net.conf import ConfigError, Place, Section

Read = Callable[[object], Any]
#: The keys of a section: what each is called in the result, and how its value is read.
Keys = dict[str, tuple[str, Read]]


_SECRETS = {"pass", "password", "token"}


class Draft:
    """The settings found so far, and the warnings."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.warnings: list[str] = []


def fail(place: Place, text: str) -> NoReturn:
    raise ConfigError(f"{place}: {text}")


def read(reader: Read, value: object, key: str, place: Place) -> Any:
    try:
        return reader(value)
    except (TypeError, ValueError) as error:
        shown = "this" if key.lower() in _SECRETS else repr(value)
        fail(place, f"{key!r} cannot be {shown}: {error}")


# Readers of values


def text(value: object) -> str:
    if isinstance(value, Section | list | bool):
        raise TypeError("a text is expected")
    return str(value)


def integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError("a whole number is expected")
    return int(value)


def switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false is expected")
    return value


def seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("a duration is expected")
    return duration_ns(value) / 1e9


def texts(value: object) -> tuple[str, ...]:
    return tuple(text(item) for item in value) if isinstance(value, list) else (text(value),)


def section(value: object, key: str, place: Place) -> Section:
    if not isinstance(value, Section):
        fail(place, f"{key!r} is a section: {key} {{ ... }}")
    return value


def each(section: Section, readers: Keys, within: str) -> dict[str, Any]:
    """The values of a section whose keys are all known, by option."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        place = section.places[key]
        if key.lower() not in readers:
            if key in section.referred:
                continue
            fail(place, f"unknown field {key!r} in {within!r}")
        option, reader = readers[key.lower()]
        found[option] = read(reader, value, key, place)
    return found


def anything(value: object) -> object:
    return value


def address(value: object) -> tuple[str | None, int]:
    """`4222`, `"host:4222"` or `"[::1]:4222"`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return None, value
    host, colon, port = text(value).rpartition(":")
    if not colon:
        return None, int(port)
    return host.strip("[]") or "0.0.0.0", int(port)


def without(draft: Draft, section: Section, keys: set[str]) -> Section:
    """The section without keys that have no effect, which are reported."""
    kept = Section()
    kept.places, kept.referred = section.places, section.referred
    for key, value in section.items():
        if key.lower() in keys:
            draft.warnings.append(f"{section.places[key]}: {key!r} has no effect here")
        else:
            kept[key] = value
    return kept
