"""How the broker runs work that takes long: measured on the event loop, or off the loop, by functions that the server
provides.

The broker knows no threads and no clock but its own. By default, as in the simulator, work is just done.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

#: Takes the name of an operation, such as the subject of an API request, and the call.
OperationRunner = Callable[[bytes, Callable[[], None]], None]
#: Takes a call that uses nothing that changes meanwhile, and what to call on the event loop with its result.
OffloopRunner = Callable[[Callable[[], Any], Callable[[Future[Any]], None]], None]


def run_unmeasured(_name: bytes, call: Callable[[], None]) -> None:
    """Make the call, without measuring it."""
    call()


def run_at_once(call: Callable[[], Any], on_done: Callable[[Future[Any]], None]) -> None:
    """Make the call on the event loop."""
    on_done(complete(call))


def complete(call: Callable[[], Any]) -> Future[Any]:
    """Make the call and return its result, or its exception, as a future that is done."""
    outcome: Future[Any] = Future()
    try:
        outcome.set_result(call())
    except Exception as error:
        outcome.set_exception(error)
    return outcome
