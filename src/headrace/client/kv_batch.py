"""Changes several keys of a bucket together: one atomic batch, all or none.

Knows which expectation makes a put, an update or a create, and which key failed it; the batch itself is in `batch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.client.errors import AtomicDisabled, KeyExists, WrongLastSequence, WrongRevision
from headrace.client.kv_entry import Entry
from headrace.client.outgoing_message import Message

if TYPE_CHECKING:
    from headrace.client.key_value import KeyValue

_CONCURRENT_READS = 64
#: How often to try to create a key that has a tombstone or marker, which may end, or be replaced, at any moment.
CREATE_ATTEMPTS = 5


async def put_many(kv: KeyValue, values: Mapping[str, Any]) -> dict[str, int]:
    return await _store(
        kv, [Message(kv.subject(key), kv.encode(value)) for key, value in values.items()], values
    )


async def update_many(kv: KeyValue, values: Mapping[str, tuple[Any, int]]) -> dict[str, int]:
    messages = [
        Message(kv.subject(key), kv.encode(value), expect_last_subject_sequence=revision)
        for key, (value, revision) in values.items()
    ]
    try:
        return await _store(kv, messages, values)
    except WrongLastSequence as error:
        expected = {key: revision for key, (_, revision) in values.items()}
        raise await _make_wrong_revision(kv, expected, error) from error


async def create_many(kv: KeyValue, values: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, int]:
    def messages(revisions: Mapping[str, int]) -> list[Message]:
        return [
            Message(
                kv.subject(key), kv.encode(value), headers, expect_last_subject_sequence=revisions.get(key, 0)
            )
            for key, value in values.items()
        ]

    tombstones: dict[str, int] = {}
    for attempts_left in reversed(range(CREATE_ATTEMPTS)):
        try:
            return await _store(kv, messages(tombstones), values)
        except WrongLastSequence as error:
            if not attempts_left:
                expected = {key: tombstones.get(key, 0) for key in values}
                raise await _make_wrong_revision(kv, expected, error) from error
            tombstones = await _find_tombstones(kv, values, error)
    raise AssertionError("the last attempt returns or raises")


async def _find_tombstones(kv: KeyValue, keys: Iterable[str], error: WrongLastSequence) -> dict[str, int]:
    """Return the revisions of deleted keys; raise the error for a key that has a value."""
    entries = await _get_last_entries(kv, keys)
    existing = [key for key, entry in entries.items() if not entry.deleted]
    if existing:
        raise KeyExists(
            error.code, error.err_code, f"already in the bucket: {', '.join(map(repr, existing))}"
        ) from error
    return {key: entry.revision for key, entry in entries.items()}


async def _make_wrong_revision(
    kv: KeyValue, expected: Mapping[str, int], error: WrongLastSequence
) -> WrongRevision:
    """Return the error with the keys whose revisions are not the expected ones, as far as that can still be seen."""
    entries = await _get_last_entries(kv, expected)
    actual = {key: entries[key].revision if key in entries else 0 for key in expected}
    mismatched = {key: expected[key] for key in expected if actual[key] != expected[key]}
    texts = [f"{key!r} has revision {actual[key]}, not {revision}" for key, revision in mismatched.items()]
    wrong = WrongRevision(error.code, error.err_code, ", ".join(texts) or error.description)
    subjects = {kv.subject(key) for key in mismatched}
    wrong.candidates = tuple(member for member in error.candidates if member.subject in subjects)
    wrong.member = wrong.candidates[0] if len(wrong.candidates) == 1 else error.member
    return wrong


async def _get_last_entries(kv: KeyValue, keys: Iterable[str]) -> dict[str, Entry]:
    semaphore = asyncio.Semaphore(_CONCURRENT_READS)

    async def get_last(key: str) -> Entry | None:
        async with semaphore:
            return await kv.last(key, from_leader=True)

    return {entry.key: entry for entry in await asyncio.gather(*map(get_last, keys)) if entry}


async def _store(kv: KeyValue, messages: list[Message], keys: Iterable[str]) -> dict[str, int]:
    if not messages:
        return {}
    # The upstream of a mirror gets all writes, and decides itself.
    if not kv.is_mirror and not (await kv.get_cached_status(required="allows_atomic")).allows_atomic:
        raise AtomicDisabled.refuse(f"bucket {kv.bucket!r} was created without allow_atomic")
    ack = await kv.js.publish_batch(messages)
    return {key: ack.first_seq + position for position, key in enumerate(keys)}
