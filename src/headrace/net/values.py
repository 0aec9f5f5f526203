"""How a configuration file is read: tables of keys, and the texts, numbers, durations and lists they stand for.

Owns the complaints about values, and that a key nobody knows is never passed over. What the keys mean is for
`settings` and its sections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from headrace.durations import duration_ns
from headrace.net.conf import ConfigError, Place, Section

Read = Callable[[object], Any]
#: How a key is read, and into which option if not the one of its name.
Row = Read | tuple[str, Read]

_SECRETS = {"pass", "password", "token"}


class Draft:
    """The settings found so far, and the warnings."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.warnings: list[str] = []


#: Settles in the draft what a part of the file says.
Part = Callable[[Draft, object, Place], None]


def fail(place: Place, text: str) -> NoReturn:
    raise ConfigError(f"{place}: {text}")


def read(reader: Read, value: object, key: str, place: Place) -> Any:
    try:
        return reader(value)
    except (TypeError, ValueError, OverflowError) as error:
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


def enabling(value: object) -> object:
    """`enabled` and `disabled` as switches; anything else as it is."""
    return _ENABLING.get(value.lower(), value) if isinstance(value, str) else value


_ENABLING = {"enabled": True, "enable": True, "disabled": False, "disable": False}


# Sections and lists


def section(value: object, key: str, place: Place) -> Section:
    if not isinstance(value, Section):
        fail(place, f"{key!r} is a section: {key} {{ ... }}")
    return value


def entries(value: object, key: str, example: str, place: Place) -> list[object]:
    if not isinstance(value, list):
        fail(place, f"{key!r} is a list: {key} [ {{{example}}} ]")
    return value


def inside(value: object, place: Place) -> Place:
    """Where the first key of a section stands: entries of a list have no place of their own."""
    return next(iter(value.places.values()), place) if isinstance(value, Section) else place


class Keys:
    """What one kind of section may say.

    `options` is a table of `"name alias ...": (option, reader)`: the option a key sets and how its value is read;
    a reader alone sets the option of the first name. `parts` have a function of their own that settles what they
    say. The names in `idle` have no effect here, and whoever uses one is told so. Everything else is refused.
    """

    def __init__(
        self,
        section: str,
        options: Mapping[str, Row],
        *,
        parts: Mapping[str, Part] = {},
        idle: str = "",
    ) -> None:
        self.section = section
        self.options: dict[str, tuple[str, Read]] = {}
        for names, row in options.items():
            first, *_ = known = names.split()
            self.options |= dict.fromkeys(known, row if isinstance(row, tuple) else (first, row))
        self.parts = {name: part for names, part in parts.items() for name in names.split()}
        self.idle = frozenset(idle.split())

    @property
    def names(self) -> frozenset[str]:
        """Every key that is known."""
        return self.idle.union(self.options, self.parts)

    def read(self, draft: Draft, value: object, place: Place, within: str = "") -> dict[str, Any]:
        """What a section says, by option."""
        found: dict[str, Any] = {}
        self.read_into(found, draft, section(value, self.section, place), within or self.section)
        return found

    def read_into(self, found: dict[str, Any], draft: Draft, written: Section, within: str = "") -> None:
        """Put what is written into `found`, in the order in which it is written."""
        for key, value in written.items():
            name, place = key.lower(), written.places[key]
            if name in self.options:
                option, reader = self.options[name]
                found[option] = read(reader, value, key, place)
            elif name in self.parts:
                self.parts[name](draft, value, place)
            elif name in self.idle:
                without_effect(draft, key, place)
            elif key not in written.referred:
                fail(place, f"unknown field {key!r}" + (f" in {within!r}" if within else ""))


def without_effect(draft: Draft, key: str, place: Place) -> None:
    draft.warnings.append(f"{place}: {key!r} has no effect here")
