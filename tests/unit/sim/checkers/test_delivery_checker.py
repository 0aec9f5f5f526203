"""A confirmed ack forbids another delivery, unless a reset may come between them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from headrace.sim.checkers.delivery_checker import DeliveryChecker
from headrace.sim.checkers.history_checker import HistoryChecker, StreamRules
from headrace.sim.checkers.store_invariants import Violation
from headrace.sim.network.sim_client import ReceivedMsg

DELIVERY = ReceivedMsg(
    b"p.1", b"$JS.ACK.P.pull.1.2.1.0.0", b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n", b""
)
CONFIRMATION = ReceivedMsg(b"_C.1", b"", b"", b"")


class Client:
    """Keeps the handlers of its requests."""

    def __init__(self) -> None:
        self.handlers: list[Callable[[ReceivedMsg], None]] = []

    def request(self, subject: str, payload: bytes, handler: Callable[[ReceivedMsg], None]) -> None:
        self.handlers.append(handler)


@pytest.mark.parametrize("idle", [False, True])
def test_a_reset_of_a_client_that_is_gone_may_come_late(idle: bool) -> None:
    checker = DeliveryChecker(HistoryChecker({"P": StreamRules()}), Random(1))
    checker.ack_everything = True
    client: Any = Client()
    checker.reset(client, "P", "pull", b"")
    checker.on_disconnect()
    if idle:
        checker.on_server_idle()
    other: Any = Client()
    checker.on_delivery(other, "pull", DELIVERY)
    other.handlers[0](CONFIRMATION)
    if idle:
        with pytest.raises(Violation, match="again after its ack was confirmed"):
            checker.on_delivery(other, "pull", DELIVERY)
    else:
        checker.on_delivery(other, "pull", DELIVERY)
