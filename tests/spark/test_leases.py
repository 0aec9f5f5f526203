"""What a lease does when the server does not take it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.spark import leases
from headrace.spark.leases import Lease
from headrace.spark.link import LinkError, Refused
from headrace.spark.streams import StreamError


class Server:
    """Refuses with what it is given, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.refusal: Exception | None = None

    def write(self, link: Any, options: Any, subject: str, finished: int) -> bool:
        self.told.append(finished)
        if self.refusal is not None:
            raise self.refusal
        return True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(leases, "Link", lambda address: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(leases, "_write", made.write)
    return made


@pytest.fixture
def lease(server: Server) -> Iterator[Lease]:
    made = Lease(SimpleNamespace(stream="S", claim_reader="r", lease_s=3600.0, address=None))  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.mark.parametrize("refusal", [StreamError("insufficient resources"), LinkError("away")])
def test_who_cannot_take_it_now_is_told_again(server: Server, lease: Lease, refusal: Exception) -> None:
    server.refusal = refusal
    lease.hold(5)
    server.refusal = None
    lease.hold(5)
    lease.hold(5)
    assert server.told == [5, 5]


def test_who_may_not_say_what_it_reads_does_not_try_again(server: Server, lease: Lease) -> None:
    server.refusal = Refused("permissions violation")
    lease.hold(5)
    lease.hold(6)
    assert server.told == [5]


def test_after_the_end_nothing_is_told(server: Server, lease: Lease) -> None:
    lease.hold(1)
    lease.close()
    lease.hold(2)
    assert server.told == [1]
