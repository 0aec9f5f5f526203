"""Times and durations as text, in the formats that nats-server reads and writes.

A time is an integer of nanoseconds since 1970 or its RFC 3339 text; a duration is an integer of nanoseconds or Go's
text for it (`1h0m0s`). Also parses the `Nats-TTL` header. Reads no clock.
"""

import datetime
from functools import lru_cache

SECOND_NS = 1_000_000_000
ZERO_TIME = "0001-01-01T00:00:00Z"
ZERO_TIME_NS = -62_135_596_800 * SECOND_NS

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_LAYOUT = "2006-01-02T15:04:05Z07:00"
_DIGITS_MAX = 19  # digits of the longest duration in nanoseconds
_UNITS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,
    "\u03bcs": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
}


@lru_cache(maxsize=4096)
def _format_second(second: int) -> str:
    days, rest = divmod(second, 86_400)
    date = datetime.date.fromordinal(days + _EPOCH_DAY)
    return f"{date.isoformat()}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def format_time(time_ns: int) -> str:
    """Format as RFC 3339 in UTC with up to nine digits, trailing zeros trimmed."""
    second, fraction = divmod(time_ns, SECOND_NS)
    if not fraction:
        return _format_second(second) + "Z"
    return f"{_format_second(second)}.{fraction:09}".rstrip("0") + "Z"


class BadTime(ValueError):
    """The text is not an RFC 3339 time; the message is nats-server's."""


class _TimeParser:
    """Parses RFC 3339 from left to right and words each error as nats-server does."""

    def __init__(self, value: str) -> None:
        self.value = value
        self.rest = value

    def make_parse_error(self, element: str) -> BadTime:
        return BadTime(
            f'parsing time "{self.value}" as "{_LAYOUT}": cannot parse "{self.rest}" as "{element}"'
        )

    def make_range_error(self, part_name: str) -> BadTime:
        return BadTime(f'parsing time "{self.value}": {part_name} out of range')

    def read_number(self, digits: int, element: str, *, shorter: bool = False) -> int:
        found = self.rest[:digits]
        if shorter and len(found) == digits and not found[-1].isdigit():
            found = found[:-1]
        if not (found.isascii() and found.isdigit()) or (len(found) < digits and not shorter):
            raise self.make_parse_error(element)
        self.rest = self.rest[len(found) :]
        return int(found)

    def expect(self, element: str) -> None:
        if not self.rest.startswith(element):
            raise self.make_parse_error(element)
        self.rest = self.rest[1:]

    def read_fraction(self) -> str:
        if self.rest[:1] not in (".", ",") or not self.rest[1:2].isdigit():
            return ""
        end = 1
        while self.rest[end : end + 1].isdigit():
            end += 1
        digits, self.rest = self.rest[1:end], self.rest[end:]
        return digits[:9].rstrip("0")

    def read_offset(self) -> tuple[int, str]:
        """Return seconds east of UTC, and the text for them."""
        if self.rest.startswith("Z"):
            self.rest = self.rest[1:]
            return 0, "Z"
        zone = self.rest[:6]
        well_formed = len(zone) == 6 and zone[0] in "+-" and zone[3] == ":"
        if not well_formed or not (zone[1:3] + zone[4:]).isdigit():
            raise self.make_parse_error("Z07:00")
        hours, minutes = int(zone[1:3]), int(zone[4:])
        if hours > 24:
            raise self.make_range_error("time zone offset hour")
        if minutes > 60:
            raise self.make_range_error("time zone offset minute")
        self.rest = self.rest[6:]
        seconds = (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)
        return seconds, zone if seconds else "Z"


def _parse_time(value: str) -> tuple[int, str]:
    parser = _TimeParser(value)
    year = parser.read_number(4, "2006")
    parser.expect("-")
    month = parser.read_number(2, "01")
    if not 1 <= month <= 12:
        raise parser.make_range_error("month")
    parser.expect("-")
    day = parser.read_number(2, "02")
    parser.expect("T")
    hour = parser.read_number(2, "15", shorter=True)
    if hour > 23:
        raise parser.make_range_error("hour")
    parser.expect(":")
    minute = parser.read_number(2, "04")
    if minute > 59:
        raise parser.make_range_error("minute")
    parser.expect(":")
    second = parser.read_number(2, "05")
    if second > 59:
        raise parser.make_range_error("second")
    fraction = parser.read_fraction()
    utc_offset_s, zone = parser.read_offset()
    if parser.rest:
        raise BadTime(f'parsing time "{value}": extra text: "{parser.rest}"')
    days = _days_since_epoch(parser, year, month, day)
    total = (days * 86_400 + hour * 3600 + minute * 60 + second - utc_offset_s) * SECOND_NS
    if fraction:
        total += int(fraction.ljust(9, "0"))
    clock = f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
    return total, f"{clock}.{fraction}{zone}" if fraction else clock + zone


def _days_since_epoch(parser: _TimeParser, year: int, month: int, day: int) -> int:
    # datetime has no year 0; four hundred years later the calendar repeats.
    try:
        ordinal = datetime.date(year or 400, month, day).toordinal()
    except ValueError:
        raise parser.make_range_error("day") from None
    return ordinal - _EPOCH_DAY - (0 if year else 146_097)


@lru_cache(maxsize=256)
def parse_time_ns(value: str) -> int:
    """Return nanoseconds since 1970 of an RFC 3339 text; raises BadTime."""
    return _parse_time(value)[0]


def to_canonical(value: str) -> str:
    """Return the same time as nats-server would write it; raises BadTime."""
    return _parse_time(value)[1]


def format_duration(duration_ns: int) -> str:
    """Format as Go does: `1h0m0s`, `1.5s`, `500ms`, `0s`."""
    if not duration_ns:
        return "0s"
    sign, left = ("-", -duration_ns) if duration_ns < 0 else ("", duration_ns)
    if left < SECOND_NS:
        unit, scale = next(
            (unit, scale)
            for unit, scale in (("ms", 1_000_000), ("\u00b5s", 1_000), ("ns", 1))
            if left >= scale
        )
        return sign + _format_decimal(left, scale) + unit
    minutes, rest = divmod(left, 60 * SECOND_NS)
    seconds = _format_decimal(rest, SECOND_NS) + "s"
    if not minutes:
        return sign + seconds
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours}h{minutes}m{seconds}" if hours else f"{sign}{minutes}m{seconds}"


def _format_decimal(value: int, scale: int) -> str:
    whole, part = divmod(value, scale)
    if not part:
        return str(whole)
    width = len(str(scale)) - 1
    return f"{whole}.{part:0{width}}".rstrip("0")


def parse_duration(value: str) -> int | None:
    """Return the nanoseconds of a Go duration, or None: sign, then one or more of number and unit, or a bare zero."""
    sign = -1 if value[:1] == "-" else 1
    rest = value[1:] if value[:1] in ("-", "+") else value
    if rest == "0":
        return 0
    if not rest:
        return None
    total = 0
    while rest:
        part, rest = _parse_element(rest)
        if part is None:
            return None
        total += part
        if total > 2**63 - (sign > 0):
            return None
    return sign * total


def _parse_element(rest: str) -> tuple[int | None, str]:
    """Return the first number and unit of a duration, and the rest."""
    whole = _leading_digits(rest)
    after = rest[len(whole) :]
    fraction = ""
    if after.startswith("."):
        fraction = _leading_digits(after[1:])
        after = after[1 + len(fraction) :]
    end = 0
    while end < len(after) and after[end] != "." and not "0" <= after[end] <= "9":
        end += 1
    scale = _UNITS.get(after[:end])
    if scale is None or not (whole or fraction):
        return None, ""
    # Truncated, not rounded, at a nanosecond; digits beyond the eighteenth cannot matter.
    digits = fraction[:18]
    whole = whole.lstrip("0")
    if len(whole) > _DIGITS_MAX:
        return None, ""
    nanoseconds = int(whole or "0") * scale + (int(digits) * scale // 10 ** len(digits) if digits else 0)
    return nanoseconds, after[end:]


def _leading_digits(value: str) -> str:
    end = 0
    while end < len(value) and "0" <= value[end] <= "9":
        end += 1
    return value[:end]


# The `Nats-TTL` header
_TTL_BYTES_MAX = 128
TTL_NONE, TTL_SECONDS, TTL_NEVER, TTL_ZERO, TTL_INVALID = "none", "seconds", "never", "zero", "invalid"


def parse_ttl(value: bytes) -> tuple[str, int]:
    """Parse a `Nats-TTL` value to (kind, seconds).

    `none`: no TTL at all (empty); `seconds`: whole seconds, at least one; `never`; `zero`: a zero duration, `00` too,
    which the seed ignores where TTLs are enabled and nats-server rejects (10165) where they are not; `invalid`: 10165,
    also for absurd values.
    """
    return _parse_ttl(value) if len(value) <= _TTL_BYTES_MAX else (TTL_INVALID, 0)


@lru_cache(maxsize=4096)
def _parse_ttl(value: bytes) -> tuple[str, int]:
    if not value:
        return TTL_NONE, 0
    if value.lower() == b"never":
        return TTL_NEVER, 0
    if value.isdigit() and value != b"0":
        return _parse_ttl_digits(value)
    try:
        duration = parse_duration(value.decode())
    except UnicodeDecodeError:
        duration = None
    if duration == 0:
        return TTL_ZERO, 0
    if duration is None or duration < SECOND_NS:
        return TTL_INVALID, 0
    return TTL_SECONDS, duration // SECOND_NS


def _parse_ttl_digits(value: bytes) -> tuple[str, int]:
    if len(value) > 20:
        return TTL_INVALID, 0
    seconds = int(value)
    if seconds > 2**63 - 1:
        return TTL_INVALID, 0
    return (TTL_SECONDS, seconds) if seconds else (TTL_ZERO, 0)
