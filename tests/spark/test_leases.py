"""What a lease does when the server does not take it."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.spark import leases
from headrace.spark.leases import Lease
from headrace.spark.link import Address, LinkError, Refused
from headrace.spark.options import Options
from headrace.spark.streams import StreamError

from .conftest import Broker, eventually


class Server:
    """Refuses with what it is given, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.refusal: Exception | None = None
        self.claimless = 0  # so often there is no registry yet

    def write(self, link: Any, options: Any, subject: str, finished: int) -> bool:
        if options.stream != "S":
            return True  # a lease of another test, which lives as long as the process
        self.told.append(finished)
        if self.refusal is not None:
            raise self.refusal
        return len(self.told) > self.claimless


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


def test_the_registry_may_come_later(server: Server, lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_LOOK_S", 0.01)
    server.claimless = 3
    lease.hold(5)
    deadline = time.monotonic() + 10
    while len(server.told) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lease.hold(5)
    assert server.told == [5] * 4  # told once it is there, and not again


def test_before_each_position_it_is_asked_anew(server: Server, lease: Lease) -> None:
    server.claimless = 1
    lease.hold(5)
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


def test_a_query_that_was_there_before_the_registry(
    own_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_LOOK_S", 0.05)
    own_broker.create(name)
    address = Address(servers=(own_broker.url,))
    lease = Lease(Options(address=address, stream=name, claim_reader="r"))
    try:
        lease.hold(7)
        own_broker.create("CLAIMS", subjects=["$CLAIMS.reader.*.*"], allow_msg_ttl=True)
        eventually(lambda: own_broker.state("CLAIMS")["messages"] == 1)
        said = own_broker.api("STREAM.MSG.GET.CLAIMS", {"last_by_subj": f"$CLAIMS.reader.{name}.r"})
        assert json.loads(base64.b64decode(said["message"]["data"])) == {"acked": 7}
    finally:
        lease.close()
