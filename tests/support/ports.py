"""Ports for servers that must know theirs before they start, or keep it over a restart.

They are below the ephemeral ports of the system, so that no other connection takes one between its choice and its use.
Each process of each test run on this machine has its own range, which a locked file reserves.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import socket
import tempfile
from pathlib import Path

_FIRST, _SHARE, _SHARES = 10_100, 350, 8  # SeaweedFS begins at 13000: see claims.object_stores

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0)
_numbers = itertools.count(os.getpid())  # different starts, in case all ranges are reserved


def free_port() -> int:
    """Return a port on which nothing listens."""
    first = _FIRST + _reserve_range() * _SHARE
    for number in itertools.islice(_numbers, _SHARE):
        port = first + number % _SHARE
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise RuntimeError("no free ports")


@functools.cache
def _reserve_range() -> int:
    """Return the number of a range that no other process has, or share one if there is none left."""
    for number in range(_worker, _worker + _SHARES):
        if reserve_number("ports", number % _SHARES):
            return number % _SHARES
    return _worker % _SHARES


def reserve_number(kind: str, number: int) -> bool:
    """Reserve a number of this kind until this process ends; return whether no process had reserved it."""
    path = Path(tempfile.gettempdir()) / f"headrace-test-{kind}-{number}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return False
    return True
