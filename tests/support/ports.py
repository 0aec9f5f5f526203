"""Ports for servers that must know theirs before they start, or keep it over a restart.

They lie below those that the system hands out by itself, so that no connection of somebody else takes one between its choice
and its use; and every process of a test run has its own.
"""

from __future__ import annotations

import itertools
import os
import socket

_FIRST, _SHARE, _SHARES = 10_100, 350, 8  # SeaweedFS begins at 13000: see claims.object_stores

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0)
_numbers = itertools.count(os.getpid())  # not from the beginning: another run may use the same share


def free_port() -> int:
    """One on which nobody listens."""
    for number in itertools.islice(_numbers, _SHARE):
        port = _FIRST + _worker % _SHARES * _SHARE + number % _SHARE
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise RuntimeError("no free ports")
