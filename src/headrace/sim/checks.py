"""What must hold of every store at every time. Owns the checkers that run after each recovery and at each
end.

Invariant: a checker only reads. `observe` gives the content in the model's form; `audit` proves that
everything a log says about itself equals what a scan of its messages gives. It must not know how anything
is kept.
"""

from __future__ import annotations

from headrace.sim.model import LogState, Message, State, fold, state
from headrace.store import Log, Store

#: In simulations, streams whose name begins so are kept in memory and are empty after a restart.
MEMORY = "M"


class Violation(AssertionError):
    """A promise was broken."""


def demand(condition: bool, text: str) -> None:
    if not condition:
        raise Violation(text)


def observe(store: Store) -> State:
    """Everything that is kept, read message by message; before anybody folds facts."""
    logs = {name: observe_log(log) for name, log in store.logs.items() if not name.startswith(MEMORY)}
    facts = {key: fold(store.facts.get(key), store.facts.notes(key)) for key in store.facts.keys(b"")}
    return state(logs, facts)


def observe_log(log: Log) -> LogState:
    messages = []
    for seq in log.seqs(None, log.first_seq, log.last_seq).tolist():
        found = log.get(seq)
        if found is None:
            raise Violation(f"{log.name}: {seq} is listed, but cannot be read")
        time_ns, subject, header, payload, ttl_s = found
        messages.append((seq, (time_ns, bytes(subject), bytes(header), bytes(payload), ttl_s)))
    return log.first_seq, log.last_seq, tuple(messages)


def audit(store: Store) -> None:
    """Every log's index equals a scan of its messages."""
    for log in store.logs.values():
        audit_log(log)


def audit_log(log: Log) -> None:
    """Info equals scan, and so does every question that the index answers."""
    first_seq, last_seq, listed = observe_log(log)
    messages = dict(listed)
    _audit_totals(log, messages)
    _audit_order(log, messages, first_seq, last_seq)
    _audit_subjects(log, messages)


def _audit_totals(log: Log, messages: dict[int, Message]) -> None:
    memory = log.name.startswith(MEMORY)
    size = sum(size_of(message, memory=memory) for message in messages.values())
    _same(log, "messages", log.messages, len(messages))
    _same(log, "bytes", log.bytes, size)
    _same(log, "first", log.first_seq, min(messages, default=log.last_seq + 1))
    subjects = {message[1] for message in messages.values()}
    _same(log, "subjects", log.num_subjects, len(subjects))
    if messages:
        _same(log, "first time", log.first_time_ns, messages[min(messages)][0])
    _same(log, "deleted", log.num_deleted, log.last_seq - log.first_seq + 1 - len(messages))


def size_of(message: Message, *, memory: bool) -> int:
    """The size of a message by the reference's formula."""
    _, subject, header, payload, _ = message
    if memory:
        return 16 + len(subject) + len(header) + len(payload)
    return 30 + len(subject) + len(payload) + (4 + len(header) if header else 0)


def _audit_order(log: Log, messages: dict[int, Message], first_seq: int, last_seq: int) -> None:
    live = sorted(messages)
    if last_seq - first_seq < 10_000:
        _same(
            log, "deleted list", list(log.deleted()), sorted(set(range(first_seq, last_seq + 1)) - set(live))
        )
    probes = [*live[:: max(1, len(live) // 6)], first_seq, last_seq, last_seq + 1, 1]
    for seq in probes:
        _same(log, f"next {seq}", log.next(None, seq), min((s for s in live if s >= seq), default=0))
        _same(log, f"prev {seq}", log.prev(None, seq), max((s for s in live if s <= seq), default=0))
        _same(log, f"count {seq}", log.count(None, seq), sum(s >= seq for s in live))
        _same(log, f"gone {seq}", log.get(seq) is None, seq not in messages)
    for seq in live[:2]:
        _same(log, f"time of {seq}", log.time_of(seq), messages[seq][0])
        at = min(s for s in live if messages[s][0] >= messages[seq][0])
        _same(log, f"seq at {seq}", log.seq_at(messages[seq][0]), at)


def _audit_subjects(log: Log, messages: dict[int, Message]) -> None:
    by_subject: dict[bytes, list[int]] = {}
    for seq, message in sorted(messages.items()):
        by_subject.setdefault(message[1], []).append(seq)
    for subject, seqs in by_subject.items():
        _same(log, f"first of {subject!r}", log.first_of(subject), seqs[0])
        _same(log, f"last of {subject!r}", log.last_of(subject), seqs[-1])
        _same(log, f"count of {subject!r}", log.count_of(subject), len(seqs))
    _same(log, "last of nothing", log.last_of(b"no.such.subject"), 0)
    counts = [(subject, len(seqs)) for subject, seqs in sorted(by_subject.items())]
    _same(log, "subjects", [(bytes(subject), count) for subject, count in log.subjects(None)], counts)
    newest = sorted(seqs[-1] for seqs in by_subject.values())
    _same(log, "last per subject", log.last_per_subject(None, log.last_seq).tolist(), newest)
    if by_subject:
        subject, seqs = min(by_subject.items())
        chosen = log.filter((subject,))
        _same(log, "filtered", log.seqs(chosen, log.first_seq, log.last_seq).tolist(), seqs)
        _same(log, "filtered count", log.count(chosen, seqs[-1]), 1)
        _same(log, "filtered next", log.next(chosen, 1), seqs[0])
        _same(log, "filtered prev", log.prev(chosen, log.last_seq), seqs[-1])


def _same(log: Log, what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Violation(f"{log.name}: {what} is {found!r}, but a scan gives {expected!r}")


def difference(found: State, expected: State) -> str:
    """Where two states differ, in a line or two."""
    lines = []
    left, right = dict(found[0]), dict(expected[0])
    for name in sorted(set(left) | set(right)):
        if name not in left or name not in right:
            lines.append(f"stream {name} is {'missing' if name not in left else 'not expected'}")
        elif left[name] != right[name]:
            lines.append(f"stream {name}: {_log_difference(left[name], right[name])}")
    facts, wanted = dict(found[1]), dict(expected[1])
    for key in sorted(set(facts) | set(wanted)):
        if facts.get(key) != wanted.get(key):
            lines.append(f"fact {key!r} is {facts.get(key)!r}, not {wanted.get(key)!r}")
    return "; ".join(lines[:6]) or "equal"


def _log_difference(found: LogState, expected: LogState) -> str:
    if found[:2] != expected[:2]:
        return f"sequences {found[0]}..{found[1]}, not {expected[0]}..{expected[1]}"
    here, there = dict(found[2]), dict(expected[2])
    missing, extra = sorted(set(there) - set(here)), sorted(set(here) - set(there))
    changed = sorted(seq for seq in set(here) & set(there) if here[seq] != there[seq])
    return f"missing {missing[:9]}, not expected {extra[:9]}, different {changed[:9]}"
