"""Backups: a stream is sent to a subject in chunks, each acknowledged, in the reference's format.

What is sent is the stream as it is when its messages are read, up to the sequence it had at the start; what leaves it
meanwhile is not in it. Some are read at a time, so that nobody waits for a backup; how much is under
way is up to whoever receives it. A receiver that falls silent, or goes, ends the backup.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.api import advisories as events
from headrace.api import errors, responses
from headrace.api.advisories import ClientInfo
from headrace.api.configs import dump
from headrace.api.decode import decode, is_empty
from headrace.api.requests import SnapshotRequest
from headrace.broker.advisories import nuid
from headrace.broker.door import Endpoint, Request
from headrace.broker.info import stream_state
from headrace.errors import Corrupt
from headrace.kernel.wire_pure import RESERVED
from headrace.protocol import headers, subjects
from headrace.protocol.archives import Entry, Packer, encode_entry, entries_of

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer
    from headrace.broker.jetstream import JetStream
    from headrace.broker.stream import Stream
    from headrace.broker.timers import Handle

STATE = b"state.json"
CONSUMERS = b"consumers/"
_CHUNK_DEFAULT, _CHUNK_MIN, _CHUNK_MAX = 128 * 1024, 1024, 1024 * 1024
_WINDOW_DEFAULT, _WINDOW_MAX = 8 * 1024 * 1024, 32 * 1024 * 1024
_SILENCE_NS = 5_000_000_000
_ARRIVAL_NS = 2_000_000_000
_LOOK_NS = 100_000_000
#: Runs of records read in one turn, how large they are, and how far one looks ahead for them.
_TURN = 8
_VIEW_BYTES = 64 * 1024
_AHEAD = 4096
#: Backups under way at once in an account.
AT_ONCE_MAX = 64


def snapshot(jetstream: JetStream, request: Request) -> bytes:
    """STREAM.SNAPSHOT: the answer first, then chunks."""
    if is_empty(request.body):
        raise errors.error(10003)
    stream = jetstream.lookup(request.names[0])
    wanted = decode(SnapshotRequest, request.body, strict=jetstream.strict)
    deliver = wanted.deliver_subject.encode()
    if not subjects.publishable(deliver) or deliver.startswith(RESERVED):
        raise errors.error(10015)
    if len(jetstream.snapshots) >= AT_ONCE_MAX:
        raise errors.error(10064, err="too many snapshots at once")
    under_way = Snapshot(stream, wanted, jetstream.advisories.client(request.session))
    jetstream.snapshots.add(under_way)
    jetstream.later(under_way.begin)
    return responses.snapshot_started(responses.shown(stream.config), under_way.state)


ENDPOINTS: dict[tuple[str, ...], Endpoint] = {
    ("STREAM", "SNAPSHOT"): Endpoint("stream_snapshot_response", snapshot, 1),
}


class Snapshot:
    """One backup under way."""

    def __init__(self, stream: Stream, wanted: SnapshotRequest, client: ClientInfo) -> None:
        self._stream = stream
        self._jetstream = jetstream = stream.jetstream
        self._client = client
        self._deliver = wanted.deliver_subject.encode()
        self._chunk = min(max(wanted.chunk_size or _CHUNK_DEFAULT, _CHUNK_MIN), _CHUNK_MAX)
        window = min(max(wanted.window_size or _WINDOW_DEFAULT, _CHUNK_MIN), _WINDOW_MAX)
        self._slots = self._slots_max = max(window // self._chunk, 1)
        self.state = stream_state(stream)
        self._consumers = [] if wanted.no_consumers else list(stream.consumers.values())
        self._last_seq = stream.log.last_seq
        self._packer: Packer | None = Packer()
        self._entries = self._read()
        self._ready = bytearray()
        self._sent = 0
        self._start_ns = jetstream.clock_ns()
        self._heard_ns = self._begun_ns = jetstream.timers.now_ns()
        self._ack = f"$JS.SNAPSHOT.ACK.{stream.name}.{nuid()}".encode()
        self._alarm: Handle | None = None
        self._busy = self._begun = False

    # Life

    def begin(self) -> None:
        """The answer is on its way: listen for acknowledgements and send."""
        if self not in self._jetstream.snapshots:
            return
        self._jetstream.advisories.send(events.snapshot_created, self._stream.name, self.state, self._client)
        self._begun = True
        self._jetstream.hub.subscribe_internal(self._ack + b".>", self)
        self._alarm = self._jetstream.timers.after(_LOOK_NS, self._look)
        self._go_on()

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A chunk has arrived at the other end."""
        self._heard_ns = self._jetstream.timers.now_ns()
        self._slots = min(self._slots + 1, self._slots_max)
        self._go_on()

    def _look(self) -> None:
        """The receiver has to be there, and to answer."""
        self._alarm = None
        now_ns = self._jetstream.timers.now_ns()
        if not self._slots and now_ns - self._heard_ns >= _SILENCE_NS:
            self._end(headers.status(408, "No Flow Response"), "no flow response")
        elif not self._jetstream.hub.interest(self._deliver) and now_ns - self._begun_ns >= _ARRIVAL_NS:
            self._end(headers.status(408, "No Interest"), "no interest")
        else:
            self._alarm = self._jetstream.timers.after(_LOOK_NS, self._look)
            self._go_on()

    def _go_on(self) -> None:
        if not self._busy:
            self._busy = True
            self._jetstream.later(self._turn)

    def close(self) -> None:
        """Send nothing more."""
        self._jetstream.snapshots.discard(self)
        if self._begun:
            self._jetstream.hub.unsubscribe_internal(self._ack + b".>", self)
        if self._alarm is not None:
            self._alarm.cancel()

    def _end(self, header: bytes, problem: str = "") -> None:
        jetstream = self._jetstream
        if self not in jetstream.snapshots:
            return
        self.close()
        jetstream.ticker.send_settled(self._deliver, b"", header, b"")
        facts = (self._stream.name, self._start_ns, jetstream.clock_ns(), self._client, problem)
        jetstream.advisories.send(events.snapshot_completed, *facts)

    # Sending

    def _turn(self) -> None:
        """Read some messages, and send what makes a chunk."""
        self._busy = False
        jetstream = self._jetstream
        if self not in jetstream.snapshots or not self._slots or not jetstream.hub.interest(self._deliver):
            return
        if self._stream.closed:
            self._end(headers.status(500, "stream closed"), "stream closed")
            return
        try:
            self._fill()
        except Corrupt as damage:
            self._end(headers.status(500, "damaged message"), str(damage))
            return
        while len(self._ready) >= self._chunk and self._slots:
            self._send(bytes(self._ready[: self._chunk]))
            del self._ready[: self._chunk]
        if self._packer is None and len(self._ready) < self._chunk:
            self._finish()
        elif self._slots:
            self._go_on()

    def _fill(self) -> None:
        for _ in range(_TURN):
            if self._packer is None or len(self._ready) >= self._chunk:
                return
            run = next(self._entries, None)
            if run is None:
                self._ready += self._packer.end()
                self._packer = None
            else:
                self._ready += self._packer.add_encoded(run)

    def _send(self, chunk: bytes) -> None:
        self._sent += 1
        self._slots -= 1
        self._heard_ns = self._jetstream.timers.now_ns()
        reply = b"%s.%d.%d" % (self._ack, len(chunk), self._sent)
        self._jetstream.ticker.send_settled(self._deliver, reply, b"", chunk)

    def _finish(self) -> None:
        """The rest needs no acknowledgement; the end has a status only if there was a chunk before it."""
        if self._ready:
            self._jetstream.ticker.send_settled(self._deliver, b"", b"", bytes(self._ready))
        self._end(headers.status(204) if self._sent else b"")

    # Reading

    def _read(self) -> Iterator[bytes]:
        """Entries of the archive, a run of them at a time."""
        now_ns = self._jetstream.clock_ns()
        state = {**self.state, "consumer_count": len(self._consumers)}
        yield encode_entry(Entry(STATE, now_ns, 0, b"", msgspec.json.encode(state)))
        for consumer in self._consumers:
            kept = _consumer_entry(consumer, self._last_seq)
            yield encode_entry(Entry(CONSUMERS + consumer.name_bytes, now_ns, 0, b"", kept))
        log = self._stream.log
        seq = log.next(None, log.first_seq)
        while 0 < seq <= self._last_seq:
            # What is live is looked up anew each time: whatever is gone by now is not in the backup.
            live = log.seqs(None, seq, min(seq + _AHEAD - 1, self._last_seq))
            data, count = entries_of(log.view(seq, _VIEW_BYTES)[0], live)
            yield data
            seq = log.next(None, int(live[max(count, 1) - 1]) + 1)


def _consumer_entry(consumer: Consumer, last_seq: int) -> bytes:
    """Configuration and progress as the reference has them, and what only we know of it."""
    progress, wait_ns = consumer.progress, consumer.config.ack_wait
    floor_consumer, floor_stream = progress.floor()
    state: dict[str, Any] = {
        "delivered": {
            "consumer_seq": progress.consumer_seq,
            "stream_seq": min(progress.stream_seq, last_seq),
        },
        "ack_floor": {"consumer_seq": floor_consumer, "stream_seq": min(floor_stream, last_seq)},
    }
    pending = {
        str(seq): {"Sequence": count, "Timestamp": max(progress.delivered_at(seq, wait_ns), 0)}
        for seq, count in progress.pending.items()
        if seq <= last_seq
    }
    if pending:
        state["pending"] = pending
    if redelivered := {str(seq): count for seq, count in progress.counts.items() if seq <= last_seq}:
        state["redelivered"] = redelivered
    if len(progress.initial):
        state["headrace"] = {"initial": progress.initial.tolist(), "resume": progress.resume}
    return b'{"config":%b,"state":%b}' % (dump(consumer.config), msgspec.json.encode(state))
