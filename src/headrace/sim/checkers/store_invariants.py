"""Invariants of every store. Owns the checkers that run after each recovery and at the end of each run.

Invariant: a checker only reads. `read_state` returns the content in the model's form; `check_store` verifies that
everything a log reports about itself equals the result of a scan of its messages. Must not know how anything is stored.
"""

from __future__ import annotations

from headrace.sim.checkers.store_model import LogState, ModelMessage, StoreState, make_state, merge_operands
from headrace.storage import Store, StreamLog

#: In simulations, streams with this name prefix are kept in memory and are empty after a restart.
MEMORY_PREFIX = "M"


class Violation(AssertionError):
    """A promise was broken."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise Violation(message)


def read_state(store: Store) -> StoreState:
    """Read everything stored, message by message; must run before a metadata compactor is registered."""
    logs = {
        name: read_log_state(log) for name, log in store.logs.items() if not name.startswith(MEMORY_PREFIX)
    }
    metadata = {
        key: merge_operands(store.metadata.get(key), store.metadata.get_operands(key))
        for key in store.metadata.keys(b"")
    }
    return make_state(logs, metadata)


def read_log_state(log: StreamLog) -> LogState:
    messages = []
    for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist():
        found = log.get(seq)
        if found is None:
            raise Violation(f"{log.name}: {seq} is listed, but cannot be read")
        time_ns, subject, header, payload, ttl_s = found
        messages.append((seq, (time_ns, bytes(subject), bytes(header), bytes(payload), ttl_s)))
    return log.first_seq, log.last_seq, tuple(messages)


def check_store(store: Store) -> None:
    """Check that every log's index equals a scan of its messages."""
    for log in store.logs.values():
        check_log(log)


def check_log(log: StreamLog) -> None:
    """Check that the info, and every query that the index answers, equals a scan."""
    first_seq, last_seq, listed_messages = read_log_state(log)
    messages = dict(listed_messages)
    _check_totals(log, messages)
    _check_order(log, messages, first_seq, last_seq)
    _check_subjects(log, messages)


def _check_totals(log: StreamLog, messages: dict[int, ModelMessage]) -> None:
    memory = log.name.startswith(MEMORY_PREFIX)
    size = sum(compute_size(message, memory=memory) for message in messages.values())
    _require_equal(log, "messages", log.messages, len(messages))
    _require_equal(log, "bytes", log.bytes, size)
    _require_equal(log, "first", log.first_seq, min(messages, default=log.last_seq + 1))
    subjects = {message[1] for message in messages.values()}
    _require_equal(log, "subjects", log.num_subjects, len(subjects))
    if messages:
        _require_equal(log, "first time", log.first_time_ns, messages[min(messages)][0])
    _require_equal(log, "deleted", log.num_deleted, log.last_seq - log.first_seq + 1 - len(messages))


def compute_size(message: ModelMessage, *, memory: bool) -> int:
    """Return the size of a message by nats-server's formula."""
    _, subject, header, payload, _ = message
    if memory:
        return 16 + len(subject) + len(header) + len(payload)
    return 30 + len(subject) + len(payload) + (4 + len(header) if header else 0)


def _check_order(log: StreamLog, messages: dict[int, ModelMessage], first_seq: int, last_seq: int) -> None:
    live = sorted(messages)
    if last_seq - first_seq < 10_000:
        _require_equal(
            log,
            "deleted list",
            log.find_deleted_seqs(log.first_seq, log.last_seq).tolist(),
            sorted(set(range(first_seq, last_seq + 1)) - set(live)),
        )
    sampled_seqs = [*live[:: max(1, len(live) // 6)], first_seq, last_seq, last_seq + 1, 1]
    for seq in sampled_seqs:
        _require_equal(
            log, f"next {seq}", log.find_next(None, seq), min((s for s in live if s >= seq), default=0)
        )
        _require_equal(
            log, f"prev {seq}", log.find_prev(None, seq), max((s for s in live if s <= seq), default=0)
        )
        _require_equal(log, f"count {seq}", log.count_from(None, seq), sum(s >= seq for s in live))
        _require_equal(log, f"gone {seq}", log.get(seq) is None, seq not in messages)
    for seq in live[:2]:
        _require_equal(log, f"time of {seq}", log.get_time_ns(seq), messages[seq][0])
        at = min(s for s in live if messages[s][0] >= messages[seq][0])
        _require_equal(log, f"seq at {seq}", log.find_seq_at_time(messages[seq][0]), at)


def _check_subjects(log: StreamLog, messages: dict[int, ModelMessage]) -> None:
    by_subject: dict[bytes, list[int]] = {}
    for seq, message in sorted(messages.items()):
        by_subject.setdefault(message[1], []).append(seq)
    for subject, seqs in by_subject.items():
        _require_equal(log, f"first of {subject!r}", log.get_first_seq(subject), seqs[0])
        _require_equal(log, f"last of {subject!r}", log.get_last_seq(subject), seqs[-1])
        _require_equal(log, f"count of {subject!r}", log.get_subject_count(subject), len(seqs))
    _require_equal(log, "last without a subject", log.get_last_seq(b"no.such.subject"), 0)
    counts = [(subject, len(seqs)) for subject, seqs in sorted(by_subject.items())]
    _require_equal(
        log, "subjects", [(bytes(subject), count) for subject, count in log.iter_subject_counts(None)], counts
    )
    newest = sorted(seqs[-1] for seqs in by_subject.values())
    _require_equal(log, "last per subject", log.find_last_per_subject(None, log.last_seq).tolist(), newest)
    if by_subject:
        subject, seqs = min(by_subject.items())
        subject_filter = log.get_filter((subject,))
        _require_equal(
            log, "filtered", log.find_seqs(subject_filter, log.first_seq, log.last_seq).tolist(), seqs
        )
        _require_equal(log, "filtered count", log.count_from(subject_filter, seqs[-1]), 1)
        _require_equal(log, "filtered next", log.find_next(subject_filter, 1), seqs[0])
        _require_equal(log, "filtered prev", log.find_prev(subject_filter, log.last_seq), seqs[-1])


def _require_equal(log: StreamLog, attribute: str, found: object, expected: object) -> None:
    if found != expected:
        raise Violation(f"{log.name}: {attribute} is {found!r}, but a scan gives {expected!r}")


def describe_difference(found: StoreState, expected: StoreState) -> str:
    """Describe where two states differ, in a line or two."""
    lines = []
    left, right = dict(found[0]), dict(expected[0])
    for name in sorted(set(left) | set(right)):
        if name not in left or name not in right:
            lines.append(f"stream {name} is {'missing' if name not in left else 'not expected'}")
        elif left[name] != right[name]:
            lines.append(f"stream {name}: {_describe_log_difference(left[name], right[name])}")
    metadata, expected_metadata = dict(found[1]), dict(expected[1])
    for key in sorted(set(metadata) | set(expected_metadata)):
        if metadata.get(key) != expected_metadata.get(key):
            lines.append(f"metadata {key!r} is {metadata.get(key)!r}, not {expected_metadata.get(key)!r}")
    return "; ".join(lines[:6]) or "equal"


def _describe_log_difference(found: LogState, expected: LogState) -> str:
    if found[:2] != expected[:2]:
        return f"sequences {found[0]}..{found[1]}, not {expected[0]}..{expected[1]}"
    here, there = dict(found[2]), dict(expected[2])
    missing, extra = sorted(set(there) - set(here)), sorted(set(here) - set(there))
    changed = sorted(seq for seq in set(here) & set(there) if here[seq] != there[seq])
    return f"missing {missing[:9]}, not expected {extra[:9]}, different {changed[:9]}"
