"""What a broker's store means, however it is stored: to compare two stores of the same frame.

A checkpoint has the ack state of the moment, and a frame what changed since the last flush. So with a checkpoint shortly
before its last frame a store knows of deliveries and unconfirmed acks that the frames do not have yet.
"""

from __future__ import annotations

from headrace.broker.consumers.consumer_storage import ACK_STATE_KEY
from headrace.broker.stream import Stream
from headrace.broker.streams.dedup import DEDUP_KEY
from headrace.sim.checkers.store_invariants import read_log_state
from headrace.sim.checkers.store_model import StoreState, make_state
from headrace.sim.sim_broker import SimBroker

#: Stored as a state and deltas to it; a checkpoint merges them.
_MERGED_KEYS = (ACK_STATE_KEY, DEDUP_KEY)


def read_logical_state(broker: SimBroker) -> StoreState:
    """Return messages and metadata, without ack states and message ids."""
    keys = [key for key in broker.store.metadata.keys(b"") if not key.startswith(_MERGED_KEYS)]
    metadata = {key: broker.store.metadata.get(key) or b"" for key in keys}
    logs = {name: read_log_state(log) for name, log in broker.store.logs.items()}
    return make_state(logs, metadata)


def read_consumers(broker: SimBroker) -> dict[str, str]:
    """Return the ack states of the consumers of each stream."""
    return {name: _describe_stream(stream) for name, stream in broker.jetstream.streams.items()}


def _describe_stream(stream: Stream) -> str:
    consumers = []
    for consumer in stream.consumer_set:
        state = consumer.ack_state
        pending, counts = sorted(state.pending.items()), sorted(state.delivery_counts.items())
        progress = state.consumer_seq, state.stream_seq, state.next_seq, state.get_ack_floor()
        consumers.append((consumer.name, progress, pending, counts))
    return repr(sorted(consumers))
