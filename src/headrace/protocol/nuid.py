"""Unique ids in the format that NATS clients and servers use.

Owns their alphabet and length. Must not know what they name.
"""

from __future__ import annotations

import secrets

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def nuid() -> str:
    """Return a unique id of 22 characters."""
    return "".join(_ALPHABET[b % 62] for b in secrets.token_bytes(22))
