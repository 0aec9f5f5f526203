"""Which claims there are, in the broker itself: one stream that holds each claim's facts and its timer.

`$CLAIMS.claim.{namespace}.{id}` holds the facts, `$CLAIMS.due.{namespace}.{id}` a message whose TTL is the timer: when
it runs out the server puts a delete marker in its place, and that is the event that makes a collector act. A marker has
no payload, which is why facts stand beside. Facts change only by compare-and-set on their sequence, so every change of
a claim's state happens once. Nothing here decides when a claim may go.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.claims.clock import SECOND_NS
from headrace.claims.records import (
    FACTS,
    Malformed,
    OnRejected,
    Rejected,
    decode_entry,
    log_rejected,
)
from headrace.claims.records import Entry as Entry
from headrace.claims.records import claim_subject as claim_subject
from headrace.claims.records import due_subject as due_subject
from headrace.claims.reference import Reference
from headrace.claims.wire import (
    NAME_IN_USE,
    STREAM_MISSING,
    WRONG_LAST_SEQUENCE,
    NoAnswer,
    Stored,
    Wire,
    checked,
    encoded,
)
from headrace.errors import RequestError

STREAM = "CLAIMS"
MARKER_REASON = "Nats-Marker-Reason"
_MARKER_TTL_S = 7 * 86400
#: Servers count a TTL in nanoseconds of 64 bits and refuse a longer one.
_TTL_MAX_S = 9_000_000_000
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
#: What leaves no marker when it expires: servers place none after something that is one by its headers.
UNMARKED = {"KV-Operation": "PURGE"}
#: Nothing to a reader, and soon gone.
_TOMBSTONE = {**UNMARKED, "Nats-TTL": "1s"}
_SCAN = 500


def entry_of(reference: Reference, namespace: str, subject: str, created_ns: int) -> Entry:
    return Entry(
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
    """The claims of one server (or account). What cannot be read is left out, and goes to `on_rejected`."""

    def __init__(self, wire: Wire, on_rejected: OnRejected = log_rejected) -> None:
        self.wire = wire
        self.on_rejected = on_rejected

    async def ensure(self) -> None:
        """Create the stream if it is missing; a stream of that name that is no registry is refused."""
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
        }
        await ensure_stream(self.wire, config)

    async def register(self, entry: Entry, timer_s: float, keep_s: float) -> Entry:
        """Write down a claim before anybody can refer to it, and start its timer."""
        due = due_subject(entry.namespace, entry.claim_id)
        timer = (due, entry.state.encode(), {"Nats-TTL": _ttl(timer_s)})
        facts, armed = await self.wire.publish_all([self._facts(entry, keep_s), timer])
        for answer in (facts, armed):
            if answer is None:
                raise NoAnswer(f"nobody said whether claim {entry.claim_id} was registered")
            checked(answer)
        return replace(entry, revision=int((facts or {})["seq"]))

    async def change(self, entry: Entry, keep_s: float) -> Entry | None:
        """Replace the facts; None if someone else changed them meanwhile."""
        try:
            answer = await self.wire.publish(*self._facts(entry, keep_s, entry.revision))
            return replace(entry, revision=int(answer["seq"]))
        except RequestError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                return None
            raise

    async def release(self, entry: Entry, keep_s: float, seconds: float) -> bool:
        """Replace the facts and let the claim fall due in so many seconds; False if someone changed them meanwhile.

        Both are sent at once: a timer beside facts that another reader changed is the one that reader set, or nearly.
        """
        due = due_subject(entry.namespace, entry.claim_id)
        timer = (due, entry.state.encode(), {"Nats-TTL": _ttl(seconds)})
        facts, armed = await self.wire.publish_all([self._facts(entry, keep_s, entry.revision), timer])
        if facts is None or armed is None:
            raise NoAnswer(f"nobody said whether claim {entry.claim_id} was released")
        checked(armed)
        if facts.get("error", {}).get("err_code") == WRONG_LAST_SEQUENCE:
            return False
        checked(facts)
        return True

    async def note(self, entry: Entry, keep_s: float) -> None:
        """Replace the facts without waiting; whoever changed them meanwhile knew better."""
        await self.wire.send(*self._facts(entry, keep_s, entry.revision))

    async def arm(self, entry: Entry, seconds: float) -> None:
        """Let the claim fall due in so many seconds, whatever was planned before."""
        await self._arm(entry, seconds)

    async def rearm(self, entries: Iterable[tuple[Entry, float, int]]) -> None:
        """Let claims fall due again (entry, seconds, sequence of the marker seen); a newer timer stays."""
        await self.wire.publish_all(
            (
                due_subject(entry.namespace, entry.claim_id),
                entry.state.encode(),
                {"Nats-TTL": _ttl(seconds), _EXPECTED: str(marker)},
            )
            for entry, seconds, marker in entries
        )

    async def find(self, namespace: str, claim_id: str) -> Entry | None:
        found = await self.wire.last(STREAM, claim_subject(namespace, claim_id))
        return next(iter(await self._entries([found])), None) if found else None

    async def find_all(self, namespace: str, claim_ids: Sequence[str]) -> dict[str, Entry]:
        subjects = [claim_subject(namespace, claim_id) for claim_id in claim_ids]
        found = await self._entries((await self.wire.last_of(STREAM, subjects)).values())
        return {entry.claim_id: entry for entry in found}

    async def remove(self, entries: Sequence[Entry]) -> list[tuple[Entry, int]]:
        """Forget claims, before their objects are deleted; those that this call, and nobody else, removed, with the
        sequences of their tombstones. Whoever changed a claim's facts meanwhile keeps it.
        """
        answers = await self.wire.publish_all(
            (
                claim_subject(entry.namespace, entry.claim_id),
                b"",
                {**_TOMBSTONE, _EXPECTED: str(entry.revision)},
            )
            for entry in entries
        )
        return [
            (entry, answer["seq"])
            for entry, answer in zip(entries, answers, strict=True)
            if answer is not None and "error" not in answer
        ]

    async def put_back(self, entry: Entry, tombstone: int, keep_s: float) -> Entry | None:
        """Facts again, of a claim that was removed and whose object would not go; None if there are others now."""
        doomed = replace(entry, doomed=True, revision=tombstone)
        # The tombstone may have run out meanwhile.
        return await self.change(doomed, keep_s) or await self.change(replace(doomed, revision=0), keep_s)

    async def stop_timers(self, entries: Iterable[Entry]) -> None:
        """Nothing is due any more for claims that were removed before their time; a timer that goes on does no harm."""
        for entry in entries:
            await self.wire.send(due_subject(entry.namespace, entry.claim_id), b"", _TOMBSTONE)

    async def drop_markers(self, sequences: Iterable[int]) -> None:
        """Markers that were dealt with; left alone they would stay for days."""
        for seq in sequences:
            await self.wire.post(f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq, "no_erase": True})

    async def scan(self, namespace: str) -> AsyncIterator[list[Entry]]:
        """All claims of a namespace that are there now, oldest facts first, in pages.

        By direct gets: a consumer for each scan would take permissions for the consumers of every namespace.
        """
        try:
            last = (await self.wire.api(f"STREAM.INFO.{STREAM}"))["state"]["last_seq"]
        except RequestError as error:
            if error.err_code == STREAM_MISSING:
                return
            raise
        async for page in self.wire.pages(STREAM, claim_subject(namespace, "*"), _SCAN):
            yield await self._entries(page)
            if page[-1].seq > last:  # facts that change meanwhile move to the end: it would never be reached
                return

    async def now_ns(self) -> int:
        return await self.wire.server_time_ns(STREAM)

    async def _entries(self, found: Iterable[Stored]) -> list[Entry]:
        """Decode facts; tombstones and the markers of facts that ran out are none."""
        entries: list[Entry] = []
        for item in found:
            if not item.data:
                continue
            try:
                entries.append(decode_entry(item.subject, item.data, item.seq, item.time_ns))
            except Malformed as error:
                await self.on_rejected(Rejected("claim", item.subject, item.seq, str(error)))
        return entries

    def _facts(
        self, entry: Entry, keep_s: float, revision: int | None = None
    ) -> tuple[str, bytes, dict[str, str]]:
        headers = {"Nats-TTL": _ttl(keep_s)}
        if revision is not None:
            headers[_EXPECTED] = str(revision)
        facts = {name: getattr(entry, name) for name in FACTS}
        return claim_subject(entry.namespace, entry.claim_id), encoded(facts), headers

    async def _arm(self, entry: Entry, seconds: float) -> None:
        subject = due_subject(entry.namespace, entry.claim_id)
        await self.wire.publish(subject, entry.state.encode(), {"Nats-TTL": _ttl(seconds)})


def keep_s(entry: Entry, grace_s: int, now_ns: int) -> float:
    """How long facts stay if no collector ever comes: as long as a marker would."""
    return max((entry.expires_ns - now_ns) / SECOND_NS, 0) + grace_s + _MARKER_TTL_S


async def ensure_stream(wire: Wire, config: Mapping[str, Any]) -> None:
    try:
        await wire.api(f"STREAM.CREATE.{config['name']}", config)
    except RequestError as error:
        if error.err_code != NAME_IN_USE:
            raise
        there = (await wire.api(f"STREAM.INFO.{config['name']}"))["config"]
        needed = ("subjects", "max_msgs_per_subject", "allow_msg_ttl")
        if any(there.get(key) != config[key] for key in needed if key in config):
            raise


async def scan_subjects(wire: Wire, stream: str, subject: str) -> AsyncIterator[list[Stored]]:
    """The messages under a subject that are there now, through a consumer that lasts as long as the scan."""
    try:
        made = await wire.api(
            f"CONSUMER.CREATE.{stream}",
            {
                "stream_name": stream,
                "config": {
                    "filter_subject": subject,
                    "ack_policy": "none",
                    "deliver_policy": "all",
                    "inactive_threshold": 60 * SECOND_NS,
                    "mem_storage": True,
                },
            },
        )
    except RequestError as error:
        if error.err_code == STREAM_MISSING:
            return
        raise
    name, left = made["name"], int(made.get("num_pending", 0))
    try:
        while left > 0:
            messages = await wire.pull(stream, name, min(left, _SCAN))
            if not messages:
                return
            left -= len(messages)
            yield [
                Stored(
                    message.subject,
                    message.metadata.sequence.stream,
                    message.headers or {},
                    message.data,
                    message.metadata.timestamp,
                )
                for message in messages
            ]
    finally:
        await wire.post(f"CONSUMER.DELETE.{stream}.{name}")  # if that is lost it goes by itself


def _ttl(seconds: float) -> str:
    return f"{min(max(1, -(-round(seconds * 1000) // 1000)), _TTL_MAX_S)}s"
