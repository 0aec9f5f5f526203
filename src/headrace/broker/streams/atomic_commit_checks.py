"""The checks of an atomic batch at its commit, in nats-server's order; the first that fails rejects the whole batch.

They see the stream as it was before the batch, regardless of what its own members would change. This module stages and
stores nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.streams import publish_checks, schedules
from headrace.broker.streams.counters import CounterTotals
from headrace.code_probes import sometimes
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.times import TTL_NEVER, TTL_NONE, TTL_SECONDS, TTL_ZERO, parse_ttl

if TYPE_CHECKING:
    from headrace.broker.streams.atomic_batch import BatchMember
    from headrace.broker.streams.stream_context import StreamContext


class CommitCheck:
    """The checks of a whole batch against the stream as it was before it."""

    __slots__ = (
        "_added_by_subject",
        "_added_bytes",
        "_batch_message_ids",
        "_counter_totals",
        "_index",
        "_last_seq",
        "_members",
        "_now_ns",
        "_stream",
    )

    def __init__(self, stream: StreamContext, members: list[BatchMember]) -> None:
        self._stream = stream
        self._members = members
        stream.retention.enforce()  # first: it may place markers, and each takes a sequence
        self._last_seq = stream.log.last_seq
        self._now_ns = stream.clock.wall_ns()
        self._batch_message_ids: set[bytes] = set()
        self._added_by_subject: dict[bytes, int] = {}
        self._added_bytes = 0
        self._index = 0
        self._counter_totals = CounterTotals(stream) if stream.config.allow_msg_counter else None

    def check(self) -> None:
        """Raise the error of the first member that may not be stored."""
        stream = self._stream
        for index, member in enumerate(self._members):
            self._index = index
            if len(member.header) > publish_checks.HEADER_BYTES_MAX:
                raise ApiError.STREAM_HEADER_EXCEEDS_MAXIMUM()
            if member.header_map.get(publish_checks.EXPECTED_LAST_MSG_ID):
                raise ApiError.ATOMIC_PUBLISH_UNSUPPORTED_HEADER_BATCH(header="Nats-Expected-Last-Msg-Id")
            publish_checks.check_counter(stream, member.header_map, member.payload)
            self._check_member(member)
            self._check_discard_new(member)
            self._added_by_subject[member.subject] = self._added_by_subject.get(member.subject, 0) + 1
        if self._counter_totals is not None:  # the sums have made them larger
            size = sum(len(each.subject) + len(each.header) + len(each.payload) for each in self._members)
            stream.reserve_frame_space(size, len(self._members))
        self._check_account()

    def check_ids(self) -> None:
        """Raise the error of the first duplicate; for members that cannot be rejected for another reason."""
        for member in self._members:
            self._check_id(member.header_map.get(publish_checks.MSG_ID, b""))

    def _check_account(self) -> None:
        """Check that the whole batch fits into the account's quota."""
        stream = self._stream
        quota, storage = stream.quota, stream.config.storage
        if quota.get_limit(storage) < 0:
            return
        added = sum(
            stream.compute_stored_size(each.subject, each.header, each.payload) for each in self._members
        )
        if not quota.reserve(storage, added):
            raise ApiError.ACCOUNT_RESOURCES_EXCEEDED()

    def _check_member(self, member: BatchMember) -> None:
        stream, header_map = self._stream, member.header_map
        expected = header_map.get(publish_checks.EXPECTED_STREAM)
        if expected and expected != stream.name_bytes:
            raise ApiError.STREAM_NOT_MATCH()
        member.ttl_s = self._parse_ttl(header_map)
        self._check_id(header_map.get(publish_checks.MSG_ID, b""))
        if header_map.get(publish_checks.STREAM_SOURCE):
            raise ApiError.MESSAGE_SOURCE_HDR_NOT_ALLOWED()
        if self._counter_totals is not None:
            member.header, member.payload = self._counter_totals.apply_increment(
                member.subject, member.header, header_map
            )
        self._check_sequences(member)
        if schedules.SCHEDULE in member.header:
            member.header, member.header_map = schedules.check_schedule(
                stream, member.subject, member.header, header_map
            )
        member.rollup = self._check_rollup(member)

    def _parse_ttl(self, header_map: Mapping[bytes, bytes]) -> int:
        """Parse the TTL as for a single publish, except that "disabled" is checked before "invalid"."""
        value = header_map.get(publish_checks.TTL)
        if not value:
            return 0
        kind, seconds = parse_ttl(value)
        config = self._stream.config
        if not config.allow_msg_ttl and kind != TTL_NONE:
            raise ApiError.MESSAGE_TTL_DISABLED()
        if kind not in (TTL_NONE, TTL_SECONDS, TTL_NEVER, TTL_ZERO):
            raise ApiError.MESSAGE_TTL_INVALID()
        return (
            publish_checks.TTL_EXEMPT if kind == TTL_NEVER else min(seconds, publish_checks.TTL_SECONDS_MAX)
        )

    def _check_id(self, message_id: bytes) -> None:
        if not message_id:
            return
        dedup = self._stream.dedup
        is_duplicate = dedup is not None and dedup.find(message_id, self._now_ns)
        if is_duplicate or message_id in self._batch_message_ids:
            sometimes("duplicate message id in an atomic batch")
            raise ApiError.ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE()
        self._batch_message_ids.add(message_id)

    def _check_sequences(self, member: BatchMember) -> None:
        """Check expected sequences against the stream as it was before the batch, for every member."""
        header_map = member.header_map
        expected = header_map.get(publish_checks.EXPECTED_LAST_SEQ)
        if expected and publish_checks.parse_number(expected) != self._last_seq:
            raise ApiError.STREAM_WRONG_LAST_SEQUENCE(seq=self._last_seq)
        subject = header_map.get(publish_checks.EXPECTED_LAST_SUBJECT)
        expected = header_map.get(publish_checks.EXPECTED_LAST_SUBJECT_SEQ)
        if expected:
            last = self._stream.find_last_seq(subject or member.subject)
            if publish_checks.parse_number(expected) != last:
                raise ApiError.STREAM_WRONG_LAST_SEQUENCE(seq=last)
        elif subject:
            raise ApiError.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID()

    def _check_rollup(self, member: BatchMember) -> bytes:
        rollup = publish_checks.check_rollup(self._stream, member.header_map)
        if rollup == b"sub" and member.subject in self._added_by_subject:
            raise ApiError.STREAM_ROLLUP_FAILED(err="batch rollup sub invalid")
        if rollup == b"all" and self._index > 0:
            raise ApiError.STREAM_ROLLUP_FAILED(err="batch rollup all invalid")
        return rollup

    def _check_discard_new(self, member: BatchMember) -> None:
        """Apply discard policy `new`, counting what the batch has added so far."""
        config, log = self._stream.config, self._stream.log
        if config.discard != "new":
            return
        self._added_bytes += self._stream.compute_stored_size(member.subject, member.header, member.payload)
        if 0 < config.max_msgs < log.messages + self._index + 1:
            raise ApiError.STREAM_STORE_FAILED(err="maximum messages exceeded")
        if 0 < config.max_bytes < log.bytes + self._added_bytes:
            raise ApiError.STREAM_STORE_FAILED(err="maximum bytes exceeded")
        if config.discard_new_per_subject and not member.rollup:
            stored_count = log.get_subject_count(member.subject) + self._added_by_subject.get(
                member.subject, 0
            )
            if stored_count >= config.max_msgs_per_subject:
                raise ApiError.STREAM_STORE_FAILED(err="maximum messages per subject exceeded")
