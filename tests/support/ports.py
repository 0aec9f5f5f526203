"""Ports for servers that must know theirs before they start, or keep it over a restart.

They are below the ephemeral ports of the system, so that no other connection takes one between its choice and its use.
Each process of a test run has its own range.
"""

from __future__ import annotations

import itertools
import os
import socket

_FIRST, _SHARE, _SHARES = 10_100, 350, 8  # SeaweedFS begins at 13000: see claims.object_stores

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0)
_numbers = itertools.count(os.getpid())  # different starts, because another test run may use the same range


def free_port() -> int:
    """Return a port on which nothing listens."""
    for number in itertools.islice(_numbers, _SHARE):
        port = _FIRST + _worker % _SHARES * _SHARE + number % _SHARE
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise RuntimeError("no free ports")
