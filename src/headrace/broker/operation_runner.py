"""How the broker runs an operation that may hold the event loop for long: by a function that the server provides.

The server's function measures it, because the broker knows no clock but its own; by default it is only called.
"""

from __future__ import annotations

from collections.abc import Callable

#: Takes the name of an operation, such as the subject of an API request, and the call.
OperationRunner = Callable[[bytes, Callable[[], None]], None]


def run_unmeasured(_name: bytes, call: Callable[[], None]) -> None:
    """Make the call, without measuring it."""
    call()
