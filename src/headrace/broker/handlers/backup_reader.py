"""Reads a stream as the archive of a backup, in nats-server's format.

A backup contains the messages that the stream still has when they are read, up to the last sequence at the start;
messages removed meanwhile are not in it. Knows nothing of how the archive is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.jetstream_api.configs import encode_config
from headrace.protocol.backup_archive import ArchiveWriter, BackupEntry, encode_entry, encode_record_entries
from headrace.storage import StreamLog

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer import Consumer

STATE_ENTRY = b"state.json"
CONSUMERS_PREFIX = b"consumers/"
#: The size of a run of records, and how far to look ahead for them.
_VIEW_BYTES = 64 * 1024
_SCAN_AHEAD = 4096


class BackupReader:
    """The archive of one stream; `finished` once all of it was read."""

    def __init__(
        self,
        log: StreamLog,
        state: dict[str, Any],
        consumers: Sequence[Consumer],
        clock_ns: Callable[[], int],
    ) -> None:
        self._log = log
        self._state = state
        self._consumers = consumers
        self._clock_ns = clock_ns
        self._last_seq = log.last_seq
        self._archive = ArchiveWriter()
        self._entries = self._iter_entries()
        self.finished = False

    def read(self) -> bytes:
        """Return the next bytes of the archive: those of one run of entries, at last those of its end."""
        run = next(self._entries, None)
        if run is not None:
            return self._archive.add_encoded(run)
        self.finished = True
        return self._archive.finish()

    def _iter_entries(self) -> Iterator[bytes]:
        """Yield the entries of the archive, a run at a time."""
        now_ns = self._clock_ns()
        state = {**self._state, "consumer_count": len(self._consumers)}
        yield encode_entry(BackupEntry(STATE_ENTRY, now_ns, 0, b"", msgspec.json.encode(state)))
        for consumer in self._consumers:
            consumer_data = _encode_consumer(consumer, self._last_seq)
            yield encode_entry(
                BackupEntry(CONSUMERS_PREFIX + consumer.name_bytes, now_ns, 0, b"", consumer_data)
            )
        log = self._log
        seq = log.find_next(None, log.first_seq)
        while 0 < seq <= self._last_seq:
            # Live messages are looked up again each time: those removed by now are not in the backup.
            live = log.find_seqs(None, seq, min(seq + _SCAN_AHEAD - 1, self._last_seq))
            data, count = encode_record_entries(log.read_view(seq, _VIEW_BYTES)[0], live)
            yield data
            seq = log.find_next(None, int(live[max(count, 1) - 1]) + 1)


def _encode_consumer(consumer: Consumer, last_seq: int) -> bytes:
    """Encode configuration and state in nats-server's format, plus a field `headrace` that only Headrace reads.

    nats-server has no place for messages that were passed over: there, delivery starts again after the ack floor.
    """
    state = _make_state(consumer, last_seq)
    own = _make_initial_queue(consumer)
    key_order = consumer.ack_state.key_order
    if key_order is not None and key_order.blocked:
        own |= {key: state[key] for key in ("delivered", "pending", "redelivered")}
        own["next"] = min(consumer.ack_state.next_seq, last_seq + 1)
        own["passed"] = [(key, first) for key, first in key_order.list_all() if first <= last_seq]
        state = {"delivered": state["ack_floor"], "ack_floor": state["ack_floor"]}
    if own:
        state["headrace"] = own
    state = {key: value for key, value in state.items() if value}
    return b'{"config":%b,"state":%b}' % (encode_config(consumer.config), msgspec.json.encode(state))


def _make_state(consumer: Consumer, last_seq: int) -> dict[str, Any]:
    """Return what was delivered, up to the last sequence of the backup."""
    progress, wait_ns = consumer.ack_state, consumer.config.ack_wait
    floor_consumer, floor_stream = progress.get_ack_floor()
    delivered_stream = min(progress.stream_seq, last_seq)
    return {
        "delivered": {"consumer_seq": progress.consumer_seq, "stream_seq": delivered_stream},
        "ack_floor": {"consumer_seq": floor_consumer, "stream_seq": min(floor_stream, last_seq)},
        "pending": {
            str(seq): {"Sequence": count, "Timestamp": max(progress.get_delivered_ns(seq, wait_ns), 0)}
            for seq, count in progress.pending.items()
            if seq <= last_seq
        },
        "redelivered": {
            str(seq): count for seq, count in progress.delivery_counts.items() if seq <= last_seq
        },
    }


def _make_initial_queue(consumer: Consumer) -> dict[str, Any]:
    """Return what is left of the initial last messages per subject."""
    progress = consumer.ack_state
    if not progress.resume_seq:
        return {}
    return {"initial": progress.last_per_subject_queue.tolist(), "resume": progress.resume_seq}
