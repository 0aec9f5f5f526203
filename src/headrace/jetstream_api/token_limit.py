"""The limit on tokens of all subjects in one request.

The work for a subject grows with its tokens, and a megabyte has room for half a million: seconds in which no other client
is served. Counted in the encoded request, so that every endpoint has the same limit and nothing is decoded first.
"""

from __future__ import annotations

#: Five for each of the 10,000 subjects that a request may have.
TOKENS_MAX = 50_000
#: A dot, as JSON may write it.
_DOTS = (b".", b"\\u002e", b"\\u002E")


def has_too_many_tokens(body: bytes) -> bool:
    """Return whether the subjects in a request may have more than `TOKENS_MAX` tokens."""
    return len(body) > TOKENS_MAX and sum(body.count(dot) for dot in _DOTS) > TOKENS_MAX
