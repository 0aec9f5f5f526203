"""Handler of STREAM.MSG.REDRIVE: stores a dead letter on its original subject again and deletes it, in one frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.consumers.dead_letter_target import find_capturing
from headrace.broker.handlers.api_dispatch import ApiEndpoint, ApiRequest
from headrace.code_probes import sometimes
from headrace.errors import CorruptData, StoreError
from headrace.jetstream_api import responses
from headrace.jetstream_api.decode import decode
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.requests import RedriveRequest
from headrace.protocol import dead_letter_headers as dead
from headrace.protocol import headers, subjects

if TYPE_CHECKING:
    from headrace.broker.handlers.api_context import ApiContext
    from headrace.broker.stream import Stream

_RESPONSE = "stream_msg_redrive_response"


def redrive(jetstream: ApiContext, request: ApiRequest) -> bytes:
    """Handle MSG.REDRIVE.<stream of dead letters>."""
    wanted = decode(RedriveRequest, request.body, strict=jetstream.reject_unknown_fields)
    stream = jetstream.registry.get_stream(request.names[0])
    if stream.config.sealed:
        raise ApiError.STREAM_SEALED()
    if stream.config.deny_delete:
        raise ApiError.STREAM_MSG_DELETE_FAILED(err="message delete not permitted")
    subject, header, payload = _read_dead_letter(stream, wanted.seq)
    target, stored_subject = _find_target(jetstream, subject, header)
    if target.config.allow_msg_counter:
        problem = (
            f"stream {target.name!r} has counters: publish the increment again, then delete the dead letter"
        )
        raise ApiError.STREAM_STORE_FAILED(err=problem)
    if target.group_commit is not stream.group_commit:
        raise ApiError.STREAM_STORE_FAILED(err="one of the streams is in memory, the other is not")
    try:
        restored = dead.restore(header, with_ttl=target.config.allow_msg_ttl)
        seq = target.store_again(stored_subject, restored, payload)
    except StoreError as error:
        raise ApiError.STREAM_STORE_FAILED(err=str(error)) from None
    stream.retention.delete_message(wanted.seq)
    stream.mark_dirty()
    sometimes("dead letter redriven")
    return responses.encode_response(_RESPONSE, {"success": True, "stream": target.name, "seq": seq})


def _find_target(jetstream: ApiContext, subject: bytes, header: bytes) -> tuple[Stream, bytes]:
    """Return the stream that a dead letter returns to, and the subject that it is stored under.

    It has the subject that its stream had stored it under, which a transform of the stream must not change again.
    """
    name = (headers.get(header, dead.STREAM) or b"").decode("utf-8", "replace")
    original = jetstream.streams.get(name)
    if original is not None and original.config.mirror is None and subjects.is_valid_publish(subject):
        return original, subject
    target = find_capturing(jetstream.router, subject)
    if target is None:
        raise ApiError.STREAM_STORE_FAILED(err=f"no stream captures {subject.decode('utf-8', 'replace')}")
    return target, target.transform_subject(subject)


def _read_dead_letter(stream: Stream, seq: int) -> tuple[bytes, bytes, bytes]:
    """Return the original subject, the headers and the payload of a dead letter."""
    try:
        message = stream.log.get(seq)
    except CorruptData as error:
        raise ApiError.STREAM_MSG_DELETE_FAILED(err=str(error)) from None
    if message is None:
        raise ApiError.NO_MESSAGE_FOUND()
    subject = headers.get(message[2], dead.SUBJECT) if message[2] else None
    if not subject:
        raise ApiError.STREAM_STORE_FAILED(err=f"sequence {seq} is not a dead letter")
    return subject, message[2], message[3]


ENDPOINTS: dict[tuple[str, ...], ApiEndpoint] = {
    ("STREAM", "MSG", "REDRIVE"): ApiEndpoint(_RESPONSE, redrive, 1),
}
