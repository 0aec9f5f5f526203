"""When a schedule fires: `@at <time>`, `@every <duration>`, `@daily` and its like, or six cron fields.

Those are second, minute, hour, day of the month, month and weekday.
Owns the patterns, and the arithmetic of calendars and time zones. Reads no clock and knows no message.
"""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple

from headrace.api import times
from headrace.api.times import SECOND

_NAMED = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_MONTHS = {"jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6}
_MONTHS |= {"jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11, "dec": 12}
_WEEKDAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_NO_NAMES: dict[str, int] = {}
_YEARS_AHEAD = 5
_PATTERN_MAX = 1024
_FAR_NS = (1 << 63) - 1


class BadPattern(ValueError):
    """The pattern is none, or never comes true."""


class BadZone(ValueError):
    """There is no such time zone."""


class Moment(NamedTuple):
    """The next time a schedule fires; `text` is how that is told, in the schedule's own zone."""

    time_ns: int
    repeats: bool
    text: str


class Field(NamedTuple):
    """What a cron field allows; `star` is whether it says nothing about it."""

    values: frozenset[int]
    star: bool


class Cron(NamedTuple):
    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field


def zone_of(name: str) -> tzinfo:
    """The time zone of that name; raises BadZone."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise BadZone(name) from None


def upcoming(pattern: str, zone: tzinfo | None, after_ns: int, now_ns: int) -> Moment:
    """The first time after `after_ns`; if that of a repeating one has passed, the first after now, so that it fires once."""
    if len(pattern) > _PATTERN_MAX:
        raise BadPattern("too long")
    if pattern.startswith("@at "):
        return _at(pattern[4:], zone)
    if pattern.startswith("@every "):
        return _every(pattern[7:], zone, after_ns, now_ns)
    cron = parse_cron(_NAMED.get(pattern, pattern))
    second = next_time(cron, zone or UTC, after_ns // SECOND)
    if second * SECOND < now_ns:
        second = next_time(cron, zone or UTC, _rounded(now_ns))
    return Moment(second * SECOND, True, _text(second, zone or UTC))


def _at(text: str, zone: tzinfo | None) -> Moment:
    if zone is not None:
        raise BadPattern("a time of its own zone")
    try:
        return Moment(min(times.nanos(text), _FAR_NS), False, text)
    except times.BadTime as refusal:
        raise BadPattern(str(refusal)) from None


def _every(text: str, zone: tzinfo | None, after_ns: int, now_ns: int) -> Moment:
    duration_ns = times.parse_duration(text)
    if zone is not None or duration_ns is None or duration_ns < SECOND:
        raise BadPattern(text)
    following = _rounded(after_ns) * SECOND + duration_ns
    if following < now_ns:
        following = _rounded(now_ns) * SECOND + duration_ns
    return Moment(min(following, _FAR_NS), True, times.text(following) if following < _FAR_NS else times.ZERO)


def _rounded(time_ns: int) -> int:
    return (time_ns + SECOND // 2) // SECOND


def _text(second: int, zone: tzinfo) -> str:
    moment = datetime.fromtimestamp(second, zone)
    offset = moment.utcoffset() or timedelta()
    # Go shows no seconds of an offset.
    shown = moment.astimezone(timezone(offset - offset % timedelta(minutes=1))).isoformat()
    return moment.replace(tzinfo=None).isoformat() + "Z" if not offset else shown


# Cron


@lru_cache(maxsize=1024)
def parse_cron(pattern: str) -> Cron:
    """Six fields; raises BadPattern."""
    fields = pattern.split()
    if len(fields) != len(Cron._fields):
        raise BadPattern(pattern)
    return Cron(
        _field(fields[0], 0, 59),
        _field(fields[1], 0, 59),
        _field(fields[2], 0, 23),
        _field(fields[3], 1, 31),
        _field(fields[4], 1, 12, _MONTHS),
        _field(fields[5], 0, 6, _WEEKDAYS),
    )


def _field(text: str, least: int, most: int, names: dict[str, int] = _NO_NAMES) -> Field:
    values: set[int] = set()
    star = False
    for part in filter(None, text.split(",")):
        found, any_value = _range(part, least, most, names)
        values.update(found)
        star = star or any_value
    if not values:
        raise BadPattern(text)
    return Field(frozenset(values), star)


def _range(text: str, least: int, most: int, names: dict[str, int]) -> tuple[range, bool]:
    """`*`, `?`, `5`, `5-9`, `mon-fri`, each with `/step`; `5/step` goes on to the end."""
    span, slash, step_text = text.partition("/")
    first, hyphen, last = span.partition("-")
    star = first in ("*", "?")
    step = _number(step_text, _NO_NAMES) if slash else 1
    if star:
        low, high = least, most
    else:
        low = _number(first, names)
        high = _number(last, names) if hyphen else (most if slash else low)
    if not (least <= low <= high <= most) or step < 1:
        raise BadPattern(text)
    return range(low, high + 1, step), star and step == 1


def _number(text: str, names: dict[str, int]) -> int:
    if (named := names.get(text.lower())) is not None:
        return named
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        raise BadPattern(text)
    return int(digits)


def next_time(cron: Cron, zone: tzinfo, after: int) -> int:
    """The first second later than `after` that the fields allow; raises BadPattern if there is none within five years.

    Goes through real time, so an hour that a change of clocks skips does not come, and one that it repeats comes twice.
    """
    second = after + 1
    year_max = datetime.fromtimestamp(second, zone).year + _YEARS_AHEAD
    while True:
        local = datetime.fromtimestamp(second, zone)
        if local.year > year_max:
            raise BadPattern("never")
        if local.month not in cron.month.values:
            following = _midnight(local.replace(day=1) + timedelta(days=32), zone, first=True)
        elif not _day_matches(cron, local):
            following = _midnight(local + timedelta(days=1), zone)
        elif local.hour not in cron.hour.values:
            following = second + 3600 - local.minute * 60 - local.second
        elif local.minute not in cron.minute.values:
            following = second + 60 - local.second
        elif local.second not in cron.second.values:
            following = second + 1
        else:
            return second
        second = max(following, second + 1)


def _midnight(local: datetime, zone: tzinfo, *, first: bool = False) -> int:
    day = 1 if first else local.day
    return int(datetime(local.year, local.month, day, tzinfo=zone).timestamp())


def _day_matches(cron: Cron, local: datetime) -> bool:
    """Both have to match if one of them says nothing, otherwise one of them is enough."""
    day = local.day in cron.day.values
    weekday = local.isoweekday() % 7 in cron.weekday.values
    return (day and weekday) if cron.day.star or cron.weekday.star else (day or weekday)
