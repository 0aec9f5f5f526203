"""Rejects requests that demand a newer API level than this server has."""

from headrace import API_LEVEL
from headrace.protocol import headers

REQUIRED_LEVEL = b"Nats-Required-Api-Level"
_DIGITS_MAX = 20


def requires_newer_api(header: bytes) -> bool:
    """Return whether a request's header block demands more than this server offers, or is unreadable."""
    if REQUIRED_LEVEL not in header:
        return False
    value = headers.get(header, REQUIRED_LEVEL)
    if not value:
        return False
    return not value.isdigit() or len(value) > _DIGITS_MAX or int(value) > API_LEVEL
