"""The Prometheus page, /metrics: broker, store, streams, consumers, and the claims of a collector in this process.

Owns the names (all begin with `headrace_`; those of claims are defined by the claim check) and the text format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from headrace import COMPATIBLE_VERSION, __version__
from headrace._native import describe_core
from headrace.broker.accounts import Account
from headrace.broker.stream import Stream
from headrace.monitor.consumer_stats import get_consumer_stats
from headrace.monitor.sliced_page import collect_parts
from headrace.monitor.varz import SECOND_NS, ServerStats, get_resident_bytes
from headrace.storage import FileDisk
from headrace.storage.io.latency import BOUNDS_US, LatencyHistogram

if TYPE_CHECKING:
    from headrace.archive.archive_stats import ArchiveStats
    from headrace.archive.follower import FollowerStats

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
    "archive_lag_groups": ("gauge", "Groups that the archive is behind, by their configured size"),
    "archive_lag_bytes": ("gauge", "Bytes of journal files with frames that are not archived"),
    "archive_lag_seconds": (
        "gauge",
        "Age of the newest moment that is archived completely; 0 if all is archived",
    ),
    "archive_late": ("gauge", "1 while the archive is further behind than max_lag"),
    "archive_epoch": ("gauge", "Epoch of this server in the archive: the number of starts and takeovers"),
    "archive_groups_total": ("counter", "Number of the newest group in the archive"),
    "archive_bases_total": ("counter", "Bases made since the start"),
    "archive_base_age_seconds": ("gauge", "Age of the newest base of this server, or time since its start"),
    "archive_sent_bytes_total": ("counter", "Bytes of groups sent since the start"),
    "archive_confirm_seconds": (
        "histogram",
        "Time from the local sync of a frame until the archive has it; only with `ack: remote`",
    ),
    "standby": ("gauge", "1 while this server is a standby and follows an archive"),
    "standby_ready": ("gauge", "1 if the standby has a copy of the stores and could take over"),
    "standby_lag_seconds": ("gauge", "Time since the standby last had everything that the archive has"),
    "standby_group": ("gauge", "Number of the newest group that the standby has"),
    "standby_leader_age_seconds": ("gauge", "Time since the leader object last changed"),
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
    "consumer_blocked_keys": ("gauge", "Keys with messages that wait for the ack of an earlier one"),
    "consumer_dead_letters_total": ("counter", "Messages published as dead letters since the server started"),
    "consumer_dead_letter_failures_total": (
        "counter",
        "Failed attempts to publish a dead letter since the server started",
    ),
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
) -> list[bytes]:
    """Render all metrics in parts, and let others be served meanwhile."""
    return [*await collect_parts(iter_metrics(stats, accounts, unhealthy_reason)), claims]


def render_archive(archive: ArchiveStats | None) -> bytes:
    """Render the metrics of the archive; nothing without one."""
    if archive is None:
        return b""
    samples = {
        "archive_lag_groups": archive.lag_groups,
        "archive_lag_bytes": archive.lag_bytes,
        "archive_lag_seconds": round(archive.lag_s, 3),
        "archive_late": int(bool(archive.warning)),
        "archive_epoch": archive.epoch,
        "archive_groups_total": archive.group,
        "archive_bases_total": archive.bases,
        "archive_base_age_seconds": round(archive.base_age_s, 3),
        "archive_sent_bytes_total": archive.bytes,
    }
    lines = [[*_format_head(name), _format_sample(name, (), value)] for name, value in samples.items()]
    confirm = _format_histogram("archive_confirm_seconds", "", archive.confirm_latency)
    return _encode_lines([*chain.from_iterable(lines), *_format_head("archive_confirm_seconds"), *confirm])


def render_standby(standby: FollowerStats) -> bytes:
    """Render the metrics of a standby that follows an archive."""
    samples = {
        "standby": 1,
        "standby_ready": int(standby.is_ready),
        "standby_lag_seconds": round(standby.lag_s, 3),
        "standby_group": standby.group,
        "standby_leader_age_seconds": round(standby.leader_age_s, 3),
    }
    lines = [[*_format_head(name), _format_sample(name, (), value)] for name, value in samples.items()]
    return _encode_lines(list(chain.from_iterable(lines)))


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
    for name in list(by_name):
        found = by_name.pop(name)  # freed one after the other: all at once would take long
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
        yield "batches_open", labels, len(jetstream.totals.staged_batches)
        yield "store_full", labels, int(store.full)
        yield "store_poisoned", labels, int(store.poisoned is not None)
        yield "store_damaged_places", labels, len(store.report().damage)
        yield "store_pending_bytes", labels, store.pending_bytes
        yield "store_free_bytes", labels, store.disk.free()


def _iter_streams(account: Account) -> Iterator[Stream]:
    """Iterate over the streams that exist when it is their turn."""
    jetstream = account.jetstream
    if jetstream is not None:
        yield from jetstream.registry.iter_streams()


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
                yield "consumer_blocked_keys", labels, shown.blocked_keys
                yield "consumer_dead_letters_total", labels, shown.dead_letters
                yield "consumer_dead_letter_failures_total", labels, shown.failed_dead_letters


def iter_commit_latency(accounts: Iterable[Account]) -> Iterator[tuple[str, LatencyHistogram]]:
    """Iterate over the commit latencies of each account's store."""
    for account in accounts:
        disk = account.jetstream.store.disk if account.jetstream is not None else None
        if isinstance(disk, FileDisk):
            yield account.display_name, disk.latency["commit"]


def _format_commit_histogram(accounts: list[Account]) -> list[str]:
    lines: list[str] = []
    for name, latency in iter_commit_latency(accounts):
        lines += _format_histogram("commit_seconds", f'account="{_escape(name)}"', latency)
    return _format_head("commit_seconds") + lines if lines else []


def _format_histogram(name: str, labels: str, latency: LatencyHistogram) -> list[str]:
    lines: list[str] = []
    cumulative, comma, block = 0, "," if labels else "", f"{{{labels}}}" if labels else ""
    for bound_us, count in zip(BOUNDS_US, latency.counts, strict=False):
        cumulative += count
        lines.append(f'headrace_{name}_bucket{{{labels}{comma}le="{bound_us / 1e6:g}"}} {cumulative}')
    lines.append(f'headrace_{name}_bucket{{{labels}{comma}le="+Inf"}} {latency.count}')
    lines.append(f"headrace_{name}_sum{block} {latency.sum_us / 1e6}")
    lines.append(f"headrace_{name}_count{block} {latency.count}")
    return lines
