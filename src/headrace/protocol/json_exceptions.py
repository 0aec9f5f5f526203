"""JSON that a peer sent: what reading it may raise when it is no good, however it is no good."""

import msgspec

#: Malformed or mistyped, not UTF-8, a number with too many digits, nested too deep.
JSON_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)
