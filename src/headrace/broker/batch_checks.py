"""The checks of an atomic batch at its commit, in the reference's order; the first that fails rejects all of it.

They speak of the stream as it was before the batch, whatever its own members would change. It stages and stores nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.api import errors
from headrace.api.times import TTL_NEVER, TTL_NONE, TTL_SECONDS, TTL_ZERO, parse_ttl
from headrace.broker import admission, schedules
from headrace.broker.counters import Totals
from headrace.probes import probe

if TYPE_CHECKING:
    from headrace.broker.batches import Member
    from headrace.broker.stream import Stream


class Commit:
    """The checks of a whole batch against the stream as it was before it."""

    __slots__ = (
        "_added_by_subject",
        "_added_bytes",
        "_ids",
        "_index",
        "_last_seq",
        "_members",
        "_now_ns",
        "_stream",
        "_totals",
    )

    def __init__(self, stream: Stream, members: list[Member]) -> None:
        self._stream = stream
        self._members = members
        self._last_seq = stream.log.last_seq
        self._now_ns = stream.jetstream.clock_ns()
        self._ids: set[bytes] = set()
        self._added_by_subject: dict[bytes, int] = {}
        self._added_bytes = 0
        self._index = 0
        self._totals = Totals(stream) if stream.config.allow_msg_counter else None

    def check(self) -> None:
        """Raises the error of the first member that may not be stored."""
        self._stream.retention.enforce()
        for index, member in enumerate(self._members):
            self._index = index
            if len(member.header) > admission.HEADER_BYTES_MAX:
                raise errors.error(10097)
            if member.found.get(admission.EXPECTED_LAST_MSG_ID):
                raise errors.error(10177, header="Nats-Expected-Last-Msg-Id")
            admission.check_counter(self._stream, member.found, member.payload)
            self._check_member(member)
            self._check_room(member)
            self._added_by_subject[member.subject] = self._added_by_subject.get(member.subject, 0) + 1
        if self._totals is not None:  # counting has made them larger
            size = sum(len(each.subject) + len(each.header) + len(each.payload) for each in self._members)
            self._stream.reserve(size, len(self._members))
        self._check_account()

    def _check_account(self) -> None:
        """All of it together has to fit into what the account may keep."""
        stream, jetstream, storage = self._stream, self._stream.jetstream, self._stream.config.storage
        cap = jetstream.cap(storage)
        if cap < 0:
            return
        added = sum(stream.stored_size(each.subject, each.header, each.payload) for each in self._members)
        if not jetstream.footprint.takes(storage, added, cap):
            raise errors.error(10002)

    def _check_member(self, member: Member) -> None:
        stream, found = self._stream, member.found
        expected = found.get(admission.EXPECTED_STREAM)
        if expected and expected != stream.name_bytes:
            raise errors.error(10060)
        member.ttl_s = self._ttl(found)
        self._check_id(found.get(admission.MSG_ID, b""))
        if found.get(admission.STREAM_SOURCE):
            raise errors.error(10227)
        if self._totals is not None:
            member.header, member.payload = self._totals.raise_by(member.subject, member.header, found)
        self._check_sequences(member)
        if schedules.SCHEDULE in member.header:
            member.header, member.found = schedules.check(stream, member.subject, member.header, found)
        member.rollup = self._rollup(member)

    def _ttl(self, found: Mapping[bytes, bytes]) -> int:
        """As with a single publish, except that "disabled" is looked at before "invalid"."""
        value = found.get(admission.TTL)
        if not value:
            return 0
        kind, seconds = parse_ttl(value)
        if not self._stream.config.allow_msg_ttl and kind != TTL_NONE:
            raise errors.error(10166)
        if kind not in (TTL_NONE, TTL_SECONDS, TTL_NEVER, TTL_ZERO):
            raise errors.error(10165)
        return admission.NEVER if kind == TTL_NEVER else min(seconds, admission.TTL_SECONDS_MAX)

    def _check_id(self, message_id: bytes) -> None:
        if not message_id:
            return
        duplicates = self._stream.duplicates
        known = duplicates is not None and duplicates.find(message_id, self._now_ns)
        if known or message_id in self._ids:
            probe("a batch repeats an id")
            raise errors.error(10201)
        self._ids.add(message_id)

    def _check_sequences(self, member: Member) -> None:
        """Expected sequences speak of the stream before the batch, for every member (the batch seed)."""
        found = member.found
        expected = found.get(admission.EXPECTED_LAST_SEQ)
        if expected and admission.number(expected) != self._last_seq:
            raise errors.error(10071, seq=self._last_seq)
        subject = found.get(admission.EXPECTED_LAST_SUBJECT)
        expected = found.get(admission.EXPECTED_LAST_SUBJECT_SEQ)
        if expected:
            last = self._stream.last_matching(subject or member.subject)
            if admission.number(expected) != last:
                raise errors.error(10071, seq=last)
        elif subject:
            raise errors.error(10193)

    def _rollup(self, member: Member) -> bytes:
        rollup = admission.check_rollup(self._stream, member.found)
        if rollup == b"sub" and member.subject in self._added_by_subject:
            raise errors.error(10111, err="batch rollup sub invalid")
        if rollup == b"all" and self._index > 0:
            raise errors.error(10111, err="batch rollup all invalid")
        return rollup

    def _check_room(self, member: Member) -> None:
        """Discard policy `new`, counting what the batch adds so far."""
        config, log = self._stream.config, self._stream.log
        if config.discard != "new":
            return
        self._added_bytes += self._stream.stored_size(member.subject, member.header, member.payload)
        if 0 < config.max_msgs < log.messages + self._index + 1:
            raise errors.error(10077, err="maximum messages exceeded")
        if 0 < config.max_bytes < log.bytes + self._added_bytes:
            raise errors.error(10077, err="maximum bytes exceeded")
        if config.discard_new_per_subject and not member.rollup:
            held = log.count_of(member.subject) + self._added_by_subject.get(member.subject, 0)
            if held >= config.max_msgs_per_subject:
                raise errors.error(10077, err="maximum messages per subject exceeded")
