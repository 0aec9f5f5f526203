"""Exceptions that decoding invalid JSON from a peer can raise."""

import msgspec

#: Malformed or mistyped, not UTF-8, a number with too many digits, nested too deep.
JSON_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)
