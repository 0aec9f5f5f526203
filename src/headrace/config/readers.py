"""Typed readers for configuration files: sections, strings, numbers, durations and lists.

Owns the error messages about values, and the rule that an unknown key is never ignored. The meaning of keys is in
`schema` and its sections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from headrace.config.config_parser import ConfigFileError, Section, SourcePos
from headrace.durations import parse_duration_ns

ValueReader = Callable[[object], Any]
#: How a key is read, and the option that it sets if that has another name.
KeyReader = ValueReader | tuple[str, ValueReader]

NO_CLUSTER_SECTION = (
    "Headrace is a single server without clusters, gateways and MQTT: remove the section, or set "
    "`standalone: true` (--standalone) to run alone on purpose. "
    "For a cluster use nats-server; clients, claims and Spark jobs work with it unchanged."
)

_SECRET_KEYS = {"pass", "password", "token"}


class ConfigDraft:
    """The settings read so far, and warnings."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.warnings: list[str] = []
        #: Sections about other servers or protocols; an error unless the server may run alone.
        self.cluster_sections: list[tuple[SourcePos, str]] = []

    def allow_standalone(self) -> None:
        """Ignore the sections that a single server cannot apply, with a warning for each."""
        for pos, key in self.cluster_sections:
            warn_ignored(self, key, pos)

    def reject_cluster_sections(self) -> None:
        """Raise an error if there is a section that a single server cannot apply."""
        for pos, key in self.cluster_sections:
            fail(pos, f"{key!r}: {NO_CLUSTER_SECTION}")


#: Reads a section of the file into the draft.
SectionReader = Callable[[ConfigDraft, object, SourcePos], None]


def fail(pos: SourcePos, text: str) -> NoReturn:
    raise ConfigFileError(f"{pos}: {text}")


def read_value(reader: ValueReader, value: object, key: str, pos: SourcePos) -> Any:
    try:
        return reader(value)
    except (TypeError, ValueError, OverflowError) as error:
        value_text = "(hidden)" if key.lower() in _SECRET_KEYS else repr(value)
        fail(pos, f"invalid value {value_text} for {key!r}: {error}")


# Values


def read_string(value: object) -> str:
    if isinstance(value, Section | list | bool):
        raise TypeError("expected a string")
    return str(value)


def read_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError("expected an integer")
    try:
        return int(value)
    except ValueError:
        raise ValueError("expected an integer") from None


def read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("expected true or false")
    return value


def read_seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("expected a duration")
    return parse_duration_ns(value) / 1e9


def read_strings(value: object) -> tuple[str, ...]:
    return tuple(read_string(item) for item in value) if isinstance(value, list) else (read_string(value),)


def read_any(value: object) -> object:
    return value


def read_host_port(value: object) -> tuple[str | None, int]:
    """Read `4222`, `"host:4222"` or `"[::1]:4222"`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return None, value
    host, colon, port_text = read_string(value).rpartition(":")
    try:
        port = int(port_text)
    except ValueError:
        raise ValueError("expected a port, or host:port") from None
    return host.strip("[]") or "0.0.0.0" if colon else None, port


def read_enabled(value: object) -> object:
    """Read `enabled` and `disabled` as booleans; return anything else unchanged."""
    return _ENABLED_WORDS.get(value.lower(), value) if isinstance(value, str) else value


_ENABLED_WORDS = {"enabled": True, "enable": True, "disabled": False, "disable": False}


# Sections and lists


def read_section(value: object, key: str, pos: SourcePos) -> Section:
    if not isinstance(value, Section):
        fail(pos, f"{key!r} must be a section: {key} {{ ... }}")
    return value


def read_list(value: object, key: str, example: str, pos: SourcePos) -> list[object]:
    if not isinstance(value, list):
        fail(pos, f"{key!r} must be a list: {key} [ {{{example}}} ]")
    return value


def get_section_pos(value: object, pos: SourcePos) -> SourcePos:
    """Return the position of the first key of a section: entries of a list have no position of their own."""
    return next(iter(value.positions.values()), pos) if isinstance(value, Section) else pos


class SectionSchema:
    """The keys of one kind of section.

    `options` is a table of `"name alias ...": (option, reader)`: the option that a key sets and how its value is read; a
    reader alone sets the option with the first name. `section_readers` are functions that read a whole section into the
    draft. The names in `ignored` have no effect and cause a warning. Everything else is an error.
    """

    def __init__(
        self,
        section: str,
        options: Mapping[str, KeyReader],
        *,
        section_readers: Mapping[str, SectionReader] = {},
        ignored: str = "",
    ) -> None:
        self.section = section
        self.options: dict[str, tuple[str, ValueReader]] = {}
        for names, key_reader in options.items():
            first, *_ = key_names = names.split()
            self.options |= dict.fromkeys(
                key_names, key_reader if isinstance(key_reader, tuple) else (first, key_reader)
            )
        self.section_readers = {
            name: section_reader
            for names, section_reader in section_readers.items()
            for name in names.split()
        }
        self.ignored = frozenset(ignored.split())

    @property
    def names(self) -> frozenset[str]:
        """All known keys."""
        return self.ignored.union(self.options, self.section_readers)

    def read(self, draft: ConfigDraft, value: object, pos: SourcePos, path: str = "") -> dict[str, Any]:
        """Read a section; return the values by option."""
        found: dict[str, Any] = {}
        self.read_into(found, draft, read_section(value, self.section, pos), path or self.section)
        return found

    def read_into(self, found: dict[str, Any], draft: ConfigDraft, section: Section, path: str = "") -> None:
        """Read a section into `found`, in the order in which it is written."""
        for key, value in section.items():
            name, pos = key.lower(), section.positions[key]
            if name in self.options:
                option, reader = self.options[name]
                found[option] = read_value(reader, value, key, pos)
            elif name in self.section_readers:
                self.section_readers[name](draft, value, pos)
            elif name in self.ignored:
                warn_ignored(draft, key, pos)
            elif key not in section.referenced:
                fail(pos, f"unknown field {key!r}" + (f" in {path!r}" if path else ""))


def warn_ignored(draft: ConfigDraft, key: str, pos: SourcePos) -> None:
    draft.warnings.append(f"{pos}: {key!r} has no effect in Headrace")
