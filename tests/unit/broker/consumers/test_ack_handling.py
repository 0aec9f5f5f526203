"""Acknowledgements with unusual values are handled like ordinary ones."""

from __future__ import annotations

from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

OPTIONS = StoreOptions(journal_bytes=1 << 20, segment_bytes=1 << 18)


class Inbox:
    def __init__(self) -> None:
        self.replies: list[bytes] = []

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        self.replies.append(reply)


def test_a_refusal_with_an_endless_delay_is_one_without() -> None:
    """The delay used to be stored as given in the ack state, which then could not be encoded: acks stopped working."""
    broker = SimBroker(SimDisk(), OPTIONS)
    broker.start()
    broker.call("STREAM.CREATE.Q", name="Q", subjects=["q"])
    config = {"durable_name": "C", "ack_policy": "explicit", "deliver_subject": "d"}
    broker.call("CONSUMER.CREATE.Q.C", stream_name="Q", config=config)
    inbox = Inbox()
    broker.router.subscribe_internal(b"d", inbox)
    broker.publish("q", b"x")
    broker.run_until_idle()
    first = inbox.replies[0]
    broker.router.publish(first, b"", b"", b'-NAK {"delay":%s}' % (b"9" * 40))
    broker.run_until_idle()
    broker.advance(1_000_000)
    assert len(inbox.replies) == 2
    number = broker.publish("q", b"y")
    broker.run_until_idle()
    assert broker.replies[number].json["seq"] == 2
