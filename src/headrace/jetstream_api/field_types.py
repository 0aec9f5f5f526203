"""Field types of configurations and requests.

Each type has two descriptions: one that msgspec checks on the fast path, which accepts only values that need no
correction, and in `extra` what the slow path needs to decode the rest and to word its errors: nats-server's name of the
type (`go`), or the values of an enumeration (`Choice`). Values are plain `int`, `str`, `bool`, `list`, `dict`. Times
are RFC 3339 text in canonical form (`times.parse_time_ns` gives nanoseconds); durations are integer nanoseconds.
"""

from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UINT64_MAX = 2**64 - 1


class Choice(NamedTuple):
    """How an enumeration is decoded: accepted raw texts, and the error for others."""

    accepts: dict[str, str]
    refusal: str  # {raw} is the JSON text, {quoted} the same quoted once more
    fold: bool = False  # compare in lower case
    text_first: bool = False  # must be a string before anything else is checked


_PLAIN_REFUSAL = "can not unmarshal {quoted}"


def _choice(*names: str, also: dict[str, str] | None = None, refusal: str = _PLAIN_REFUSAL) -> Choice:
    accepts = {f'"{name}"': name for name in names}
    return Choice(accepts | (also or {}), refusal)


Int = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX, extra={"go": "int"})]
Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX, extra={"go": "int64"})]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, extra={"go": "int32"})]
# msgspec has no bounds above int64; larger values are handled on the slow path.
Uint64 = Annotated[int, Meta(ge=0, le=INT64_MAX, extra={"go": "uint64"})]
Duration = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX, extra={"go": "time.Duration"})]

# Canonical UTC text only, and no day that some month lacks: the slow path checks the rest.
_DATE = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{0,8}[1-9])?Z$"
Time = Annotated[str, Meta(pattern=_DATE + _CLOCK, extra={"go": "time.Time"})]

Retention = Annotated[
    Literal["limits", "interest", "workqueue"],
    Meta(extra={"choice": _choice("limits", "interest", "workqueue")}),
]
Discard = Annotated[Literal["old", "new"], Meta(extra={"choice": _choice("old", "new")._replace(fold=True)})]
Storage = Annotated[Literal["file", "memory"], Meta(extra={"choice": _choice("file", "memory")})]
Compression = Annotated[
    Literal["none", "s2"],
    Meta(
        extra={
            "choice": _choice("none", "s2", refusal="unknown compression algorithm")._replace(text_first=True)
        }
    ),
]
PersistMode = Annotated[
    Literal["default", "async"],
    Meta(extra={"choice": _choice("default", "async", also={'""': "default"})}),
]
DeliverPolicy = Annotated[
    Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"],
    Meta(
        extra={
            "choice": _choice(
                "all",
                "last",
                "new",
                "by_start_sequence",
                "by_start_time",
                "last_per_subject",
                also={'"undefined"': "all"},
            )
        }
    ),
]
AckPolicy = Annotated[
    Literal["none", "all", "explicit", "flow_control"],
    Meta(extra={"choice": _choice("none", "all", "explicit", "flow_control")}),
]
ReplayPolicy = Annotated[
    Literal["instant", "original"], Meta(extra={"choice": _choice("instant", "original")})
]
PriorityPolicy = Annotated[
    Literal["none", "overflow", "pinned_client", "prioritized"],
    Meta(
        extra={
            "choice": _choice(
                "none",
                "overflow",
                "pinned_client",
                "prioritized",
                refusal="unknown priority policy: {raw}",
            )
        }
    ),
]
Action = Annotated[
    Literal["", "create", "update"],
    Meta(extra={"choice": _choice("", "create", "update", refusal="unknown consumer action: {raw}")}),
]
