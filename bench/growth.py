"""Growth: does the ratio to nats-server stay the same with much more data?

Each workload is measured on a server with little data and on one with much; the second ratio must not be worse than
the first. They take minutes and run with `perf.py --growth`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from load import CHUNK, Connection, publication, pump, repeat

#: Messages that one measurement of a grown stream sends.
PROBE = 50_000


@dataclass(frozen=True)
class Growth:
    """A preparation in two sizes, and the measurement after each."""

    name: str
    title: str
    little: int
    much: int
    prepare: Callable[[int, int], None]
    measure: Callable[[int], float]


def _publish(port: int, subjects: int, total: int) -> float:
    """Publish messages to the stream G, on this many subjects in turn; return messages per second."""
    with Connection(port) as connection:
        reply = connection.inbox + b".a"
        chunks = (
            b"".join(publication(b"G.%d" % ((at + i) % subjects), b"x" * 128, reply) for i in range(CHUNK))
            for at in range(0, total, CHUNK)
        )
        return total / pump(connection, chunks, b"MSG " + reply, total)


def _fill_messages(port: int, messages: int) -> None:
    with Connection(port) as connection:
        connection.stream("G", allow_direct=True)
    _publish(port, 1000, messages)


def _fill_subjects(port: int, subjects: int) -> None:
    with Connection(port) as connection:
        connection.stream("G", allow_direct=True)
    _publish(port, subjects, max(subjects, CHUNK))


def _add_consumers(port: int, consumers: int) -> None:
    with Connection(port) as connection:
        connection.stream("G", allow_direct=True)
        for number in range(consumers):
            connection.consumer("G", f"C{number}", ack_policy="explicit", filter_subject=f"G.idle.{number}")


def _measure_publish(port: int) -> float:
    """Measure publishing to the prepared stream; always the same message, so that only the server differs."""
    with Connection(port) as connection:
        reply = connection.inbox + b".a"
        chunk = b"".join(publication(b"G.%d" % i, b"x" * 128, reply) for i in range(CHUNK))
        return PROBE / pump(connection, repeat(chunk, PROBE // CHUNK), b"MSG " + reply, PROBE)


def _measure_get(port: int) -> float:
    """Measure direct gets of the last message of 1,000 subjects."""
    with Connection(port) as connection:
        reply = connection.inbox + b".a"
        gets = b"".join(publication(b"$JS.API.DIRECT.GET.G.G.%d" % i, b"", reply) for i in range(CHUNK))
        return PROBE / pump(connection, repeat(gets, PROBE // CHUNK), b"HMSG " + reply, PROBE, window=2000)


GROWTHS = [
    Growth("messages_pub", "publish after N messages", 10_000, 10_000_000, _fill_messages, _measure_publish),
    Growth("messages_get", "direct get after N messages", 10_000, 10_000_000, _fill_messages, _measure_get),
    Growth("subjects_pub", "publish with N subjects", 1000, 1_000_000, _fill_subjects, _measure_publish),
    Growth("subjects_get", "direct get with N subjects", 1000, 1_000_000, _fill_subjects, _measure_get),
    Growth(
        "consumers_pub", "publish with N idle filtered consumers", 0, 1000, _add_consumers, _measure_publish
    ),
]
