"""Message schedules: computes when `@at <time>`, `@every <duration>`, `@daily` and the like, or six cron fields are
due.

The cron fields are second, minute, hour, day of the month, month and weekday. Owns the patterns and the arithmetic of
calendars and time zones. Reads no clock and must not know messages.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple

from headrace.jetstream_api import times
from headrace.jetstream_api.times import SECOND_NS

_NAMED_SCHEDULES = {
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
_TIME_NS_MAX = (1 << 63) - 1


class BadPattern(ValueError):
    """The pattern is invalid, or is never due."""


class BadZone(ValueError):
    """There is no such time zone."""


class FireTime(NamedTuple):
    """The next time a schedule is due; `text` is that time in the schedule's own zone."""

    time_ns: int
    repeats: bool
    text: str


class CronField(NamedTuple):
    """The values that a cron field allows; `star` is whether it allows all."""

    values: frozenset[int]
    is_any: bool


class Cron(NamedTuple):
    second: CronField
    minute: CronField
    hour: CronField
    day: CronField
    month: CronField
    weekday: CronField


def get_zone(name: str) -> tzinfo:
    """Return the time zone of that name; raises BadZone."""
    import zoneinfo  # here, because it takes several milliseconds of each start and schedules are rare

    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise BadZone(name) from None


def find_next_fire(pattern: str, zone: tzinfo | None, after_ns: int, now_ns: int) -> FireTime:
    """Return the first time after `after_ns`.

    If a repeating one has passed already, the first after now: it fires only once.
    """
    if len(pattern) > _PATTERN_MAX:
        raise BadPattern("too long")
    if pattern.startswith("@at "):
        return _parse_at(pattern[4:], zone)
    if pattern.startswith("@every "):
        return _parse_every(pattern[7:], zone, after_ns, now_ns)
    cron = parse_cron(_NAMED_SCHEDULES.get(pattern, pattern))
    second = find_next_time(cron, zone or UTC, after_ns // SECOND_NS)
    if second * SECOND_NS < now_ns:
        second = find_next_time(cron, zone or UTC, _round_to_second(now_ns))
    return FireTime(second * SECOND_NS, True, _format_time(second, zone or UTC))


def _parse_at(text: str, zone: tzinfo | None) -> FireTime:
    if zone is not None:
        raise BadPattern("@at does not accept a time zone")
    try:
        return FireTime(min(times.parse_time_ns(text), _TIME_NS_MAX), False, text)
    except times.BadTime as failure:
        raise BadPattern(str(failure)) from None


def _parse_every(text: str, zone: tzinfo | None, after_ns: int, now_ns: int) -> FireTime:
    duration_ns = times.parse_duration(text)
    if zone is not None or duration_ns is None or duration_ns < SECOND_NS:
        raise BadPattern(text)
    candidate = _round_to_second(after_ns) * SECOND_NS + duration_ns
    if candidate < now_ns:
        candidate = _round_to_second(now_ns) * SECOND_NS + duration_ns
    return FireTime(
        min(candidate, _TIME_NS_MAX),
        True,
        times.format_time(candidate) if candidate < _TIME_NS_MAX else times.ZERO_TIME,
    )


def _round_to_second(time_ns: int) -> int:
    return (time_ns + SECOND_NS // 2) // SECOND_NS


def _format_time(second: int, zone: tzinfo) -> str:
    local_time = datetime.fromtimestamp(second, zone)
    offset = local_time.utcoffset() or timedelta()
    # Go omits the seconds of an offset.
    formatted = local_time.astimezone(timezone(offset - offset % timedelta(minutes=1))).isoformat()
    return local_time.replace(tzinfo=None).isoformat() + "Z" if not offset else formatted


# Cron


@lru_cache(maxsize=1024)
def parse_cron(pattern: str) -> Cron:
    """Parse six fields; raises BadPattern."""
    fields = pattern.split()
    if len(fields) != len(Cron._fields):
        raise BadPattern(pattern)
    return Cron(
        _parse_field(fields[0], 0, 59),
        _parse_field(fields[1], 0, 59),
        _parse_field(fields[2], 0, 23),
        _parse_field(fields[3], 1, 31),
        _parse_field(fields[4], 1, 12, _MONTHS),
        _parse_field(fields[5], 0, 6, _WEEKDAYS),
    )


def _parse_field(text: str, minimum: int, maximum: int, names: dict[str, int] = _NO_NAMES) -> CronField:
    values: set[int] = set()
    is_any = False
    for part in filter(None, text.split(",")):
        found, any_value = _parse_range(part, minimum, maximum, names)
        values.update(found)
        is_any = is_any or any_value
    if not values:
        raise BadPattern(text)
    return CronField(frozenset(values), is_any)


def _parse_range(text: str, minimum: int, maximum: int, names: dict[str, int]) -> tuple[range, bool]:
    """Parse `*`, `?`, `5`, `5-9`, `mon-fri`, each with `/step`; `5/step` extends to the maximum."""
    span, slash, step_text = text.partition("/")
    first, hyphen, last = span.partition("-")
    is_any = first in ("*", "?")
    step = _parse_number(step_text, _NO_NAMES) if slash else 1
    if is_any:
        low, high = minimum, maximum
    else:
        low = _parse_number(first, names)
        high = _parse_number(last, names) if hyphen else (maximum if slash else low)
    if not (minimum <= low <= high <= maximum) or step < 1:
        raise BadPattern(text)
    return range(low, high + 1, step), is_any and step == 1


def _parse_number(text: str, names: dict[str, int]) -> int:
    if (named := names.get(text.lower())) is not None:
        return named
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        raise BadPattern(text)
    return int(digits)


def find_next_time(cron: Cron, zone: tzinfo, after: int) -> int:
    """Return the first second after `after` that the fields allow.

    Raises BadPattern if there is none within five years. Steps through real time, so an hour that a clock change skips
    does not occur, and one that it repeats occurs twice.
    """
    second = after + 1
    year_max = datetime.fromtimestamp(second, zone).year + _YEARS_AHEAD
    while True:
        local = datetime.fromtimestamp(second, zone)
        if local.year > year_max:
            raise BadPattern("never")
        if local.month not in cron.month.values:
            candidate = _midnight_at(local.replace(day=1) + timedelta(days=32), zone, first=True)
        elif not _day_matches(cron, local):
            candidate = _midnight_at(local + timedelta(days=1), zone)
        elif local.hour not in cron.hour.values:
            candidate = second + 3600 - local.minute * 60 - local.second
        elif local.minute not in cron.minute.values:
            candidate = second + 60 - local.second
        elif local.second not in cron.second.values:
            candidate = second + 1
        else:
            return second
        second = max(candidate, second + 1)


def _midnight_at(local: datetime, zone: tzinfo, *, first: bool = False) -> int:
    day = 1 if first else local.day
    return int(datetime(local.year, local.month, day, tzinfo=zone).timestamp())


def _day_matches(cron: Cron, local: datetime) -> bool:
    """Return whether the day matches: both day fields must match if one of them is `*`, otherwise one is enough."""
    day = local.day in cron.day.values
    weekday = local.isoweekday() % 7 in cron.weekday.values
    return (day and weekday) if cron.day.is_any or cron.weekday.is_any else (day or weekday)
