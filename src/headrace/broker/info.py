"""What streams look like from outside: the info that answers and lists show."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from headrace import COMPATIBLE_VERSION
from headrace.api import responses

if TYPE_CHECKING:
    from headrace.broker.stream import Stream

#: Sequences of removed messages that one answer lists; a mirror or a restore can leave a gap of any size.
DELETED_MAX = 1_000_000


def stream_info(
    stream: Stream,
    *,
    listed: bool = False,
    leader: str = "",
    subjects: dict[str, int] | None = None,
    deleted: bool = False,
) -> dict[str, Any]:
    """Configuration and state; in a list without what only this server adds to the metadata."""
    jetstream = stream.jetstream
    now_ns = jetstream.timers.now_ns()
    return responses.stream_info(
        responses.shown(stream.config, "" if listed else COMPATIBLE_VERSION),
        stream.created_ns,
        stream_state(stream, subjects, deleted=deleted),
        jetstream.now_ns(),
        domain=jetstream.domain,
        leader=leader,
        mirror=stream.sourcing.mirror(now_ns),
        sources=stream.sourcing.sources(now_ns),
    )


def stream_state(
    stream: Stream, subjects: dict[str, int] | None = None, *, deleted: bool = False
) -> dict[str, Any]:
    """Counts, sequences and times; everything overdue is gone from them."""
    stream.retention.enforce()
    log = stream.log
    untouched = not log.messages and not log.last_seq
    state = responses.State(
        messages=log.messages,
        bytes=log.bytes,
        first_seq=0 if untouched else log.first_seq,
        first_time_ns=log.first_time_ns if log.messages else 0,
        last_seq=log.last_seq,
        last_time_ns=log.last_time_ns,
        num_subjects=log.num_subjects,
        num_deleted=log.num_deleted,
        consumers=len(stream.consumers),
    )
    listed = list(islice(log.deleted(), DELETED_MAX)) if deleted else None
    return responses.stream_state(state, subjects, listed)
