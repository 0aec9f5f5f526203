"""Builds stream info for API responses and lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace import COMPATIBLE_VERSION
from headrace.jetstream_api import responses

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import StreamContext


def make_stream_info(
    stream: StreamContext,
    *,
    in_list: bool = False,
    leader: str = "",
    subjects: msgspec.Raw | None = None,
    deleted: msgspec.Raw | None = None,
) -> dict[str, Any]:
    """Return configuration and state; in a list, without the metadata that only this server adds."""
    jetstream = stream.jetstream
    now_ns = jetstream.timers.now_ns()
    return responses.make_stream_info_body(
        responses.encode_public_config(stream.config, "" if in_list else COMPATIBLE_VERSION),
        stream.created_ns,
        make_stream_state(stream, subjects, deleted=deleted),
        stream.clock.now_ns(),
        domain=jetstream.domain,
        leader=leader,
        mirror=stream.sourcing.make_mirror_info(now_ns),
        sources=stream.sourcing.make_source_infos(now_ns),
    )


def make_stream_state(
    stream: StreamContext, subjects: msgspec.Raw | None = None, *, deleted: msgspec.Raw | None = None
) -> dict[str, Any]:
    """Return counts, sequences and times, without messages that have expired."""
    stream.retention.enforce()
    log = stream.log
    is_new = not log.messages and not log.last_seq
    state = responses.StreamInfoState(
        messages=log.messages,
        bytes=log.bytes,
        first_seq=0 if is_new else log.first_seq,
        first_time_ns=log.first_time_ns if log.messages else 0,
        last_seq=log.last_seq,
        last_time_ns=log.last_time_ns,
        num_subjects=log.num_subjects,
        num_deleted=log.num_deleted,
        consumers=len(stream.consumers),
    )
    return responses.make_stream_state_body(state, subjects, deleted)
