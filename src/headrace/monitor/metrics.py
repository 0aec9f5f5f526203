"""The Prometheus page, /metrics: broker, store, streams, consumers, and the claims of a collector in this process.

Owns the names (all begin with `headrace_`; those of claims are defined by the claim check) and the text format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from headrace import COMPATIBLE_VERSION, __version__
from headrace._native import describe_core
from headrace.broker.accounts import Account
from headrace.broker.stream import Stream
from headrace.monitor.consumer_stats import get_consumer_stats
from headrace.monitor.sliced_page import Slices
from headrace.monitor.varz import SECOND_NS, ServerStats, get_resident_bytes
from headrace.storage import FileDisk
from headrace.storage.io.latency import BOUNDS_US, LatencyHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Type and help text by name.
METRIC_DEFINITIONS = {
    "info": ("gauge", "Versions, and whether the compiled core is used; always 1"),
    "healthy": ("gauge", "1 if the server is healthy (as in /healthz)"),
    "start_time_seconds": ("gauge", "Start time of the server, in seconds since the epoch"),
    "resident_bytes": ("gauge", "Resident memory in bytes"),
    "connections": ("gauge", "Current client connections"),
    "connections_total": ("counter", "Client connections since the start"),
    "subscriptions": ("gauge", "Subscriptions of all clients"),
    "received_messages_total": ("counter", "Messages received from clients"),
    "received_bytes_total": ("counter", "Bytes of messages received from clients"),
    "sent_messages_total": ("counter", "Messages sent to clients"),
    "sent_bytes_total": ("counter", "Bytes of messages sent to clients"),
    "slow_consumers_total": (
        "counter",
        "Slow consumers: clients disconnected because they did not read fast enough",
    ),
    "leafnodes": ("gauge", "Leafnode connections"),
    "loop_stalls_total": ("counter", "Turns of the event loop above 50 ms, in which all clients waited"),
    "loop_stalled_seconds_total": ("counter", "Duration of the turns of the event loop above 50 ms"),
    "loop_longest_stall_seconds": ("gauge", "Longest turn of the event loop since the start"),
    "api_requests_total": ("counter", "JetStream API requests"),
    "api_errors_total": ("counter", "JetStream API requests that returned an error"),
    "store_full": ("gauge", "1 while the disk is full and no messages are stored"),
    "store_poisoned": ("gauge", "1 after a failed fsync: nothing is acknowledged until a restart"),
    "store_damaged_places": (
        "gauge",
        "Damaged places in the store, until they are removed with headrace fsck",
    ),
    "store_pending_bytes": ("gauge", "Bytes accepted but not yet written to their files"),
    "store_free_bytes": ("gauge", "Free bytes on the disk of the store"),
    "commit_seconds": ("histogram", "Time to write and sync a frame"),
    "batches_open": ("gauge", "Atomic batches in flight"),
    "stream_messages": ("gauge", "Messages in the stream"),
    "stream_bytes": ("gauge", "Bytes in the stream"),
    "stream_subjects": ("gauge", "Subjects in the stream"),
    "stream_consumers": ("gauge", "Consumers of the stream"),
    "stream_first_sequence": ("gauge", "Sequence of the oldest message"),
    "stream_last_sequence": ("counter", "Sequence of the newest message"),
    "stream_expired_total": ("counter", "Messages expired since the start"),
    "stream_markers_total": ("counter", "Delete markers written since the start"),
    "stream_batches_total": ("counter", "Atomic batches committed since the start"),
    "stream_batches_abandoned_total": ("counter", "Atomic batches abandoned since the start"),
    "stream_source_lag": ("gauge", "Lag of a mirror or source, in messages"),
    "stream_source_failing": ("gauge", "1 while a mirror or source has an error"),
    "consumer_pending": ("gauge", "Messages not yet delivered"),
    "consumer_ack_pending": ("gauge", "Messages delivered and not acknowledged"),
    "consumer_redelivered": ("gauge", "Redelivered messages that are not acknowledged"),
    "consumer_waiting": ("gauge", "Waiting pull requests"),
    "consumer_delivered_sequence": ("counter", "Stream sequence of the last delivered message"),
    "consumer_ack_floor_sequence": (
        "counter",
        "Ack floor: stream sequence up to which all messages are acknowledged",
    ),
    "consumer_paused": ("gauge", "1 while the consumer is paused"),
}

_LINES_PER_PART = 1000

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]


def render_metrics(
    stats: ServerStats, accounts: Iterable[Account], unhealthy_reason: str, claims: bytes = b""
) -> bytes:
    """Render all metrics in the text format; `claims` is appended as it is."""
    return b"".join(iter_metrics(stats, accounts, unhealthy_reason)) + claims


async def render_metrics_sliced(
    stats: ServerStats, accounts: Iterable[Account], unhealthy_reason: str, claims: bytes = b""
) -> bytes:
    """Render all metrics, and let others be served meanwhile."""
    parts: list[bytes] = []
    with Slices() as slices:
        for part in iter_metrics(stats, accounts, unhealthy_reason):
            parts.append(part)
            if slices.is_over():
                await slices.next_turn()
    return b"".join(parts) + claims


def iter_metrics(stats: ServerStats, accounts: Iterable[Account], unhealthy_reason: str) -> Iterator[bytes]:
    """Iterate over the parts of the text; most are empty, so that a caller can stop between samples."""
    accounts = list(accounts)
    by_name: dict[str, list[str]] = {}
    for name, labels, value in chain(
        _server_samples(stats, unhealthy_reason),
        _store_samples(accounts),
        _all_stream_samples(accounts),
        _consumer_samples(accounts),
    ):
        by_name.setdefault(name, []).append(_format_sample(name, labels, value))
        yield b""
    for name, found in by_name.items():
        for start in range(0, len(found), _LINES_PER_PART):
            head = [] if start else _format_head(name)
            yield _encode_lines(head + found[start : start + _LINES_PER_PART])
    yield _encode_lines(_format_commit_histogram(accounts))


def _encode_lines(lines: list[str]) -> bytes:
    return "".join([f"{line}\n" for line in lines]).encode()


def _format_head(name: str) -> list[str]:
    kind, text = METRIC_DEFINITIONS[name]
    return [f"# HELP headrace_{name} {text}", f"# TYPE headrace_{name} {kind}"]


def _format_sample(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
    return f"headrace_{name}{{{shown}}} {value}" if shown else f"headrace_{name} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _server_samples(stats: ServerStats, unhealthy_reason: str) -> Iterator[Sample]:
    labels = (("version", __version__), ("compatible", COMPATIBLE_VERSION), ("core", describe_core()))
    yield "info", labels, 1
    yield "healthy", (), int(not unhealthy_reason)
    yield "start_time_seconds", (), stats.start_ns // SECOND_NS
    yield "resident_bytes", (), get_resident_bytes()
    yield "connections", (), stats.connections
    yield "connections_total", (), stats.total_connections
    yield "subscriptions", (), stats.subscriptions
    yield "received_messages_total", (), stats.in_msgs
    yield "received_bytes_total", (), stats.in_bytes
    yield "sent_messages_total", (), stats.out_msgs
    yield "sent_bytes_total", (), stats.out_bytes
    yield "slow_consumers_total", (), stats.slow_consumers
    yield "leafnodes", (), stats.leafnodes
    yield "loop_stalls_total", (), stats.loop_stalls.count
    yield "loop_stalled_seconds_total", (), stats.loop_stalls.total_s
    yield "loop_longest_stall_seconds", (), stats.loop_stalls.longest_s


def _store_samples(accounts: list[Account]) -> Iterator[Sample]:
    for account in accounts:
        jetstream = account.jetstream
        if jetstream is None:
            continue
        store, labels = jetstream.store, (("account", account.display_name),)
        yield "api_requests_total", labels, jetstream.api_total
        yield "api_errors_total", labels, jetstream.api_errors
        yield "batches_open", labels, jetstream.open_batches
        yield "store_full", labels, int(store.full)
        yield "store_poisoned", labels, int(store.poisoned is not None)
        yield "store_damaged_places", labels, len(store.report().damage)
        yield "store_pending_bytes", labels, store.pending_bytes
        yield "store_free_bytes", labels, store.disk.free()


def _iter_streams(account: Account) -> Iterator[Stream]:
    """Iterate over the streams that exist when it is their turn."""
    jetstream = account.jetstream
    if jetstream is not None:
        for stream in jetstream.registry.sorted_streams():
            if jetstream.streams.get(stream.name) is stream:
                yield stream


def _all_stream_samples(accounts: list[Account]) -> Iterator[Sample]:
    for account in accounts:
        for stream in _iter_streams(account):
            yield from _stream_samples(stream, (("account", account.display_name), ("stream", stream.name)))


def _stream_samples(stream: Stream, labels: Labels) -> Iterator[Sample]:
    log, counts = stream.log, stream.jetstream.event_history.counts
    yield "stream_messages", labels, log.messages
    yield "stream_bytes", labels, log.bytes
    yield "stream_subjects", labels, log.num_subjects
    yield "stream_consumers", labels, len(stream.consumers)
    yield "stream_first_sequence", labels, log.first_seq
    yield "stream_last_sequence", labels, log.last_seq
    yield "stream_expired_total", labels, counts["expired", stream.name]
    yield "stream_markers_total", labels, counts["marker", stream.name]
    yield "stream_batches_total", labels, counts["batch", stream.name]
    yield "stream_batches_abandoned_total", labels, counts["abandoned", stream.name]
    now_ns = stream.jetstream.timers.now_ns()
    mirror = stream.sourcing.make_mirror_info(now_ns)
    for source in [*([mirror] if mirror else []), *stream.sourcing.make_source_infos(now_ns)]:
        source_labels = (*labels, ("source", source.name))
        yield "stream_source_lag", source_labels, source.lag
        yield "stream_source_failing", source_labels, int(source.error is not None)


def _consumer_samples(accounts: list[Account]) -> Iterator[Sample]:
    for account in accounts:
        for stream in _iter_streams(account):
            for name, consumer in sorted(stream.consumers.items()):
                if stream.consumers.get(name) is not consumer:
                    continue
                shown = get_consumer_stats(consumer)
                labels = (
                    ("account", account.display_name),
                    ("stream", stream.name),
                    ("consumer", consumer.name),
                )
                yield "consumer_pending", labels, shown.pending
                yield "consumer_ack_pending", labels, shown.ack_pending
                yield "consumer_redelivered", labels, shown.redelivered
                yield "consumer_waiting", labels, shown.waiting
                yield "consumer_delivered_sequence", labels, shown.delivered
                yield "consumer_ack_floor_sequence", labels, shown.ack_floor
                yield "consumer_paused", labels, int(shown.paused)


def iter_commit_latency(accounts: Iterable[Account]) -> Iterator[tuple[str, LatencyHistogram]]:
    """Iterate over the commit latencies of each account's store."""
    for account in accounts:
        disk = account.jetstream.store.disk if account.jetstream is not None else None
        if isinstance(disk, FileDisk):
            yield account.display_name, disk.latency["commit"]


def _format_commit_histogram(accounts: list[Account]) -> list[str]:
    lines: list[str] = []
    for name, latency in iter_commit_latency(accounts):
        cumulative, labels = 0, f'account="{_escape(name)}"'
        for bound_us, count in zip(BOUNDS_US, latency.counts, strict=False):
            cumulative += count
            lines.append(f'headrace_commit_seconds_bucket{{{labels},le="{bound_us / 1e6:g}"}} {cumulative}')
        lines.append(f'headrace_commit_seconds_bucket{{{labels},le="+Inf"}} {latency.count}')
        lines.append(f"headrace_commit_seconds_sum{{{labels}}} {latency.sum_us / 1e6}")
        lines.append(f"headrace_commit_seconds_count{{{labels}}} {latency.count}")
    return _format_head("commit_seconds") + lines if lines else []
