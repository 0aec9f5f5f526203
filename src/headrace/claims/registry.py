"""Registry of claims in the broker: one stream with a record and a timer for each claim.

`$CLAIMS.claim.{namespace}.{id}` holds the claim record, `$CLAIMS.due.{namespace}.{id}` a message whose TTL is the
timer: when it expires the server writes a delete marker in its place, and that event makes a collector act. A marker
has no payload, which is why the record is a separate message. Records change only by compare-and-set on their sequence,
so every state change of a claim happens once. Nothing here decides when a claim may be deleted. See ADR 30.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from headrace.claims.clock import SECOND_NS
from headrace.claims.jetstream_client import (
    STREAM_NAME_IN_USE,
    STREAM_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    JetStreamClient,
    RequestTimeout,
    encode_json,
    raise_on_error,
)
from headrace.claims.records import (
    RECORD_FIELDS,
    MalformedRecord,
    OnRejected,
    RejectedRecord,
    decode_entry,
    log_rejected,
)
from headrace.claims.records import ClaimEntry as ClaimEntry
from headrace.claims.records import claim_subject as claim_subject
from headrace.claims.records import due_subject as due_subject
from headrace.claims.reference import Reference
from headrace.claims.stream_messages import StreamMessage
from headrace.errors import RequestError

STREAM = "CLAIMS"
MARKER_REASON = "Nats-Marker-Reason"
_MARKER_TTL_S = 7 * 86400
#: Servers store a TTL as 64-bit nanoseconds and reject a longer one.
_TTL_MAX_S = 9_000_000_000
_EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
#: Headers that prevent a marker on expiry: servers write none for a message that is itself a marker by its headers.
NO_MARKER_HEADERS = {"KV-Operation": "PURGE"}
#: Ignored by readers, and soon gone.
_TOMBSTONE_HEADERS = {**NO_MARKER_HEADERS, "Nats-TTL": "1s"}
_SCAN_BATCH = 500


def make_entry(reference: Reference, namespace: str, subject: str, created_ns: int) -> ClaimEntry:
    return ClaimEntry(
        reference.claim_id,
        namespace,
        subject,
        reference.bucket,
        reference.object_key,
        reference.original_size,
        reference.stored_size,
        created_ns,
        reference.expires_at,
        reference=reference.as_dict(),
    )


class Registry:
    """The claims of one server (or account). Unreadable records are skipped and passed to `on_rejected`."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        on_rejected: OnRejected = log_rejected,
        stream_settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.jetstream = jetstream
        self.on_rejected = on_rejected
        self._stream_settings = stream_settings

    async def ensure(self) -> None:
        """Create the stream if it is missing; raise if a stream of that name is not a registry."""
        config = {
            "name": STREAM,
            "subjects": ["$CLAIMS.claim.*.*", "$CLAIMS.due.*.*", "$CLAIMS.reader.*.*", "$CLAIMS.namespace.*"],
            "max_msgs_per_subject": 1,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": _MARKER_TTL_S * SECOND_NS,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "storage": "file",
            "description": "Claim check: facts and timers of claims",
            **self._stream_settings,
        }
        await ensure_stream(self.jetstream, config)

    async def register(self, entry: ClaimEntry, timer_s: float, ttl_s: float) -> ClaimEntry:
        """Store the record of a claim before anybody can refer to it, and start its timer."""
        due = due_subject(entry.namespace, entry.claim_id)
        timer = (due, entry.state.encode(), {"Nats-TTL": _format_ttl(timer_s)})
        metadata_ack, timer_ack = await self.jetstream.publish_all([self._make_update(entry, ttl_s), timer])
        for ack in (metadata_ack, timer_ack):
            if ack is None:
                raise RequestTimeout(
                    f"no reply, so it is unknown whether claim {entry.claim_id} was registered"
                )
            raise_on_error(ack)
        return replace(entry, revision=int((metadata_ack or {})["seq"]))

    async def compare_and_set(self, entry: ClaimEntry, ttl_s: float) -> ClaimEntry | None:
        """Replace the record; return None if another process changed it meanwhile."""
        try:
            ack = await self.jetstream.publish(*self._make_update(entry, ttl_s, entry.revision))
            return replace(entry, revision=int(ack["seq"]))
        except RequestError as error:
            if error.err_code in WRONG_LAST_SEQUENCE:
                return None
            raise

    async def release(self, entry: ClaimEntry, ttl_s: float, seconds: float) -> bool:
        """Replace the record and set the claim's timer; return False if another process changed the record meanwhile.

        Both are sent at once: if another reader changed the record, it set nearly the same timer.
        """
        due = due_subject(entry.namespace, entry.claim_id)
        timer = (due, entry.state.encode(), {"Nats-TTL": _format_ttl(seconds)})
        metadata_ack, timer_ack = await self.jetstream.publish_all(
            [self._make_update(entry, ttl_s, entry.revision), timer]
        )
        if metadata_ack is None or timer_ack is None:
            raise RequestTimeout(f"no reply, so it is unknown whether claim {entry.claim_id} was released")
        raise_on_error(timer_ack)
        if metadata_ack.get("error", {}).get("err_code") in WRONG_LAST_SEQUENCE:
            return False
        raise_on_error(metadata_ack)
        return True

    async def update_nowait(self, entry: ClaimEntry, ttl_s: float) -> None:
        """Replace the record without waiting; if another process changed it meanwhile, that change wins."""
        await self.jetstream.publish_nowait(*self._make_update(entry, ttl_s, entry.revision))

    async def set_timer(self, entry: ClaimEntry, seconds: float) -> None:
        """Set the claim's timer, whatever it was before."""
        await self._publish_timer(entry, seconds)

    async def reset_timers(self, entries: Iterable[tuple[ClaimEntry, float, int]]) -> None:
        """Set timers again (entry, seconds, sequence of the marker seen); a newer timer stays."""
        await self.jetstream.publish_all(
            (
                due_subject(entry.namespace, entry.claim_id),
                entry.state.encode(),
                {"Nats-TTL": _format_ttl(seconds), _EXPECTED_LAST_SUBJECT_SEQUENCE: str(marker)},
            )
            for entry, seconds, marker in entries
        )

    async def find(self, namespace: str, claim_id: str) -> ClaimEntry | None:
        found = await self.jetstream.get_last(STREAM, claim_subject(namespace, claim_id))
        return next(iter(await self._decode_entries([found])), None) if found else None

    async def find_all(self, namespace: str, claim_ids: Sequence[str]) -> dict[str, ClaimEntry]:
        """Return the records of claims by id.

        A claim that is not found has no record: the sweep may delete its object. The reverse is not certain, because a
        replica may return a record that was purged. That deletes nothing: `remove` and every other change are
        compare-and-sets with its revision, which the leader rejects. Claims are removed by tombstones, which no current
        replica lacks; only an administrator purges records.
        """
        subjects = [claim_subject(namespace, claim_id) for claim_id in claim_ids]
        found = await self._decode_entries(
            (await self.jetstream.get_last_per_subject(STREAM, subjects)).values()
        )
        return {entry.claim_id: entry for entry in found}

    async def remove(self, entries: Sequence[ClaimEntry]) -> list[tuple[ClaimEntry, int]]:
        """Remove records before their objects are deleted; return those that this call removed, with the sequences of
        their tombstones. A claim whose record was changed meanwhile stays.
        """
        acks = await self.jetstream.publish_all(
            (
                claim_subject(entry.namespace, entry.claim_id),
                b"",
                {**_TOMBSTONE_HEADERS, _EXPECTED_LAST_SUBJECT_SEQUENCE: str(entry.revision)},
            )
            for entry in entries
        )
        return [
            (entry, ack["seq"])
            for entry, ack in zip(entries, acks, strict=True)
            if ack is not None and "error" not in ack
        ]

    async def restore(self, entry: ClaimEntry, tombstone: int, ttl_s: float) -> ClaimEntry | None:
        """Restore the record of a removed claim whose object could not be deleted.

        Returns None if there is a newer record.
        """
        failed_entry = replace(entry, doomed=True, revision=tombstone)
        # The tombstone may have expired meanwhile.
        return await self.compare_and_set(failed_entry, ttl_s) or await self.compare_and_set(
            replace(failed_entry, revision=0), ttl_s
        )

    async def cancel_timers(self, entries: Iterable[ClaimEntry]) -> None:
        """Cancel the timers of claims that were removed early; a timer that still runs does no harm."""
        for entry in entries:
            await self.jetstream.publish_nowait(
                due_subject(entry.namespace, entry.claim_id), b"", _TOMBSTONE_HEADERS
            )

    async def delete_markers(self, sequences: Iterable[int]) -> None:
        """Delete markers that were processed; otherwise they would stay for days."""
        for seq in sequences:
            await self.jetstream.api_request_nowait(
                f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq, "no_erase": True}
            )

    async def scan(self, namespace: str) -> AsyncIterator[list[ClaimEntry]]:
        """Yield pages of all existing claims of a namespace, oldest record first.

        In a cluster some may be out of date: callers change claims by compare-and-set with the revision only.
        """
        async for page in scan_subjects(self.jetstream, STREAM, claim_subject(namespace, "*")):
            yield await self._decode_entries(page)

    async def get_server_time_ns(self) -> int:
        return await self.jetstream.get_server_time_ns(STREAM)

    async def _decode_entries(self, found: Iterable[StreamMessage]) -> list[ClaimEntry]:
        """Decode records; tombstones and markers of expired records are skipped."""
        entries: list[ClaimEntry] = []
        for item in found:
            if not item.data:
                continue
            try:
                entries.append(decode_entry(item.subject, item.data, item.seq, item.time_ns))
            except MalformedRecord as error:
                await self.on_rejected(RejectedRecord("claim", item.subject, item.seq, str(error)))
        return entries

    def _make_update(
        self, entry: ClaimEntry, ttl_s: float, revision: int | None = None
    ) -> tuple[str, bytes, dict[str, str]]:
        headers = {"Nats-TTL": _format_ttl(ttl_s)}
        if revision is not None:
            headers[_EXPECTED_LAST_SUBJECT_SEQUENCE] = str(revision)
        metadata = {name: getattr(entry, name) for name in RECORD_FIELDS}
        return claim_subject(entry.namespace, entry.claim_id), encode_json(metadata), headers

    async def _publish_timer(self, entry: ClaimEntry, seconds: float) -> None:
        subject = due_subject(entry.namespace, entry.claim_id)
        await self.jetstream.publish(subject, entry.state.encode(), {"Nats-TTL": _format_ttl(seconds)})


def metadata_ttl_s(entry: ClaimEntry, grace_s: int, now_ns: int) -> float:
    """Return how long a record stays if no collector ever runs: as long as a marker would."""
    return max((entry.expires_ns - now_ns) / SECOND_NS, 0) + grace_s + _MARKER_TTL_S


async def ensure_stream(jetstream: JetStreamClient, config: Mapping[str, Any]) -> None:
    """Create a stream if it is missing; one with fewer replicas gets more, one with more keeps them."""
    try:
        await jetstream.api_request(f"STREAM.CREATE.{config['name']}", config)
    except RequestError as error:
        if error.err_code != STREAM_NAME_IN_USE:
            raise
        existing = (await jetstream.api_request(f"STREAM.INFO.{config['name']}"))["config"]
        needed = ("subjects", "max_msgs_per_subject", "allow_msg_ttl")
        if any(existing.get(key) != config[key] for key in needed if key in config):
            raise
        if existing.get("num_replicas", 1) < config.get("num_replicas", 1):
            settings = {key: config[key] for key in ("num_replicas", "placement") if key in config}
            await jetstream.api_request(f"STREAM.UPDATE.{config['name']}", {**existing, **settings})


async def scan_subjects(
    jetstream: JetStreamClient, stream: str, subject: str
) -> AsyncIterator[list[StreamMessage]]:
    """Yield pages of the messages under a subject, oldest first, as far as the stream's end at the start.

    Uses direct gets: a consumer for each scan would need permissions for the consumers of every namespace, and
    nats-server may end a pull that does not wait although messages are pending.
    """
    try:
        last = (await jetstream.api_request(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
    except RequestError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return
        raise
    async for page in jetstream.pages(stream, subject, _SCAN_BATCH):
        yield page
        if page[-1].seq > last:  # records that change meanwhile move to the end, which would never be reached
            return


def _format_ttl(seconds: float) -> str:
    return f"{min(max(1, -(-round(seconds * 1000) // 1000)), _TTL_MAX_S)}s"
