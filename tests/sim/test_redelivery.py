"""Redeliveries survive a restart."""

from __future__ import annotations

from headrace.sim import SimClock, SimDisk
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES

SECOND = 1_000_000_000


def pull(broker: SimBroker) -> list[bytes]:
    """Return what a pull request receives at once."""

    class Inbox:
        def on_message(
            self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
        ) -> None:
            found.append(payload)

    found: list[bytes] = []
    broker.router.subscribe_internal(b"inbox", Inbox())
    broker.router.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"inbox", b"", b'{"batch":1}')
    broker.run_until_idle()
    return found


def test_what_was_about_to_be_delivered_again_is_so_after_a_restart() -> None:
    """A message queued for redelivery must survive a restart (found by seeds 6, 36 and 38)."""
    disk, clock = SimDisk(7), SimClock()
    broker = SimBroker(disk, SIZES[0], clock)
    broker.start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s"])
    config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": SECOND}
    broker.call("CONSUMER.CREATE.S.c", stream_name="S", config=config)
    broker.publish("s", b"once")
    pull(broker)
    broker.advance(2 * SECOND)  # overdue: it waits for the next pull
    broker.store.checkpoint()
    broker.advance(SECOND)
    again = SimBroker(broker.disk.kill(), SIZES[0], clock)
    again.start()
    assert pull(again) == [b"once"]
