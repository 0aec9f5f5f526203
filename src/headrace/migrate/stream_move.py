"""The steps of moving one stream. Each can be repeated, and does nothing if it was done before.

See `mover` for their order and for why nothing is lost. Every step reads what the servers have before it changes
anything, so a new process continues where another one was killed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

from headrace.client.errors import JetStreamError
from headrace.client.fast_ingest import closed_subject
from headrace.errors import HeadraceError
from headrace.migrate import stream_config as configs
from headrace.migrate.consumer_move import (
    await_acks,
    await_restored,
    create_consumer,
    get_pauses,
    list_durables,
    pause_all,
    read_positions,
    resume_all,
)
from headrace.migrate.jetstream_server import JetStreamServer
from headrace.migrate.late_markers import copy_late_markers
from headrace.migrate.obstacles import find_obstacles
from headrace.migrate.sequence_compare import Difference, LiveSequences, compare
from headrace.migrate.stream_backup import copy_stream

_POLL_S = 0.05
_SETTLE_PAUSE_S = 0.5
_VERIFY_S = 5.0
#: A sequence that no stream has: the server rejects the message and replies with the last sequence that it assigned.
_IMPOSSIBLE_SEQ = (1 << 62) - 1
_WRONG_LAST_SEQUENCE = 10071
_LAST_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")
#: The mirror is near enough to close the old stream.
_NEAR_MESSAGES = 1000
_FILL_BATCH = 256
_BY_RESTORE = ("workqueue", "interest")


class MoveFailed(HeadraceError):
    """A move cannot start or continue; the message says what to do."""


class StreamMove:
    """One stream on its way from the old to the new server."""

    def __init__(
        self,
        name: str,
        old: JetStreamServer,
        new: JetStreamServer,
        *,
        replicas: int,
        domain: str,
        complete_s: float = 60.0,
    ) -> None:
        self.name = name
        self.record: configs.Move = {}
        self.messages = 0
        self._old = old
        self._new = new
        self._replicas = replicas
        self._domain = domain
        self._complete_s = complete_s
        self._original: configs.Config = {}

    # State

    async def check_movable(self) -> None:
        """Raise if the stream does not exist or cannot be moved, before anything is changed."""
        info = await self._old.find(f"STREAM.INFO.{self.name}")
        if info is None:
            raise MoveFailed(f"stream {self.name} does not exist on {self._old.name}")
        if obstacle := next(find_obstacles(info["config"]), None):
            raise MoveFailed(f"{self.name} cannot be moved: {obstacle.text}; {obstacle.remedy}")

    async def discard_retired(self) -> None:
        """Remove the stream that an earlier move has left on the new server, if the old one's messages came from it."""
        old_info = await self._old.find(f"STREAM.INFO.{self.name}")
        new_info = await self._new.find(f"STREAM.INFO.{self.name}")
        old_move = configs.get_move(old_info["config"]) if old_info else None
        new_move = configs.get_move(new_info["config"]) if new_info else None
        if not (old_move and new_move and new_move["state"] == configs.MOVED):
            return
        if old_move["state"] == configs.OPEN and old_move["id"] == new_move["id"]:
            await self._new.find(f"STREAM.DELETE.{self.name}")

    async def read_states(self) -> tuple[str, str]:
        """Return the states of both streams; an empty one if there is no record, or no stream on the new server."""
        old_info = await self._old.find(f"STREAM.INFO.{self.name}")
        if old_info is None:
            raise MoveFailed(f"stream {self.name} does not exist on {self._old.name}")
        old_move = configs.get_move(old_info["config"]) or {}
        if old_move.get("state") == configs.OPEN:
            # It came here by an earlier move, which is over.
            old_move = {}
        new_info = await self._new.find(f"STREAM.INFO.{self.name}")
        new_move = (configs.get_move(new_info["config"]) or {}) if new_info else {}
        if new_info and not new_move:
            raise MoveFailed(f"{self._new.name} has another stream {self.name}; remove it or choose others")
        self._original = configs.get_original(old_info["config"])
        self.messages = int(old_info["state"]["messages"])
        self.record = old_move or new_move
        if old_move and new_move and old_move["id"] != new_move["id"]:
            raise MoveFailed(f"the streams {self.name} belong to different moves; undo the move first")
        return str(old_move.get("state", "")), str(new_move.get("state", ""))

    @property
    def is_restored(self) -> bool:
        """Whether the stream is copied by a backup while it is closed.

        A mirror would remove the messages of a work queue or an interest stream, and cannot become a counter.
        """
        config = self._original
        return not self._domain or config["retention"] in _BY_RESTORE or bool(config.get("allow_msg_counter"))

    def begin(self, record: configs.Move) -> None:
        """Use this record of the whole move, if the stream has none."""
        self.record = {**record, **self.record}
        self.record.setdefault("copy", "restore" if self.is_restored else "mirror")
        if self.is_restored and self.record["copy"] == "mirror":
            raise MoveFailed(
                f"{self.name} is being mirrored, but {self._new.name} does not reach {self._old.name}; connect the "
                "leafnode again, or start over after 'headrace migrate undo'"
            )

    # Copying

    async def start_copy(self) -> None:
        """Create the mirror."""
        if not self.is_restored:
            config = configs.make_mirror(
                self._original, self._get_base_record(), self._replicas, self._domain
            )
            await self._create_stream(config)

    async def _create_stream(self, config: configs.Config) -> None:
        try:
            await self._new.api(f"STREAM.CREATE.{self.name}", config)
        except JetStreamError as error:
            raise MoveFailed(f"{self._new.name} refused stream {self.name}: {error}") from error

    async def await_near(self, on_progress: Callable[[int], None]) -> None:
        """Wait until the mirror has almost all messages."""
        if self.is_restored:
            return
        shown, first = 0, None
        deadline_s = time.monotonic() + self._complete_s
        while True:
            old, new = await self._read_both(deleted=False)
            mirror, state = new.get("mirror"), new["state"]
            if mirror is None:
                return
            if first is None:
                first = max(state["last_seq"], old["state"]["first_seq"] - 1)
            done = max(state["last_seq"] - first, 0)
            if done > shown:
                on_progress(done - shown)
                shown, deadline_s = done, time.monotonic() + self._complete_s
            if _is_near(old["state"], state, mirror):
                return
            if time.monotonic() > deadline_s:
                reason = (mirror.get("error") or {}).get("description") or "no message arrived"
                raise MoveFailed(f"the mirror of {self.name} on {self._new.name} does not advance: {reason}")
            await asyncio.sleep(_POLL_S)

    # The old stream

    async def close(self) -> None:
        """Let the old stream accept no more publishes, and its consumers deliver nothing."""
        info = await self._old.api(f"STREAM.INFO.{self.name}")
        move = configs.get_move(info["config"])
        if not move or move.get("state") != configs.CLOSED:
            paused = get_pauses(await list_durables(self._old, self.name))
            self.record = {**self.record, "paused": paused}
            await self._old.api(
                f"STREAM.UPDATE.{self.name}",
                configs.make_closed(configs.get_original(info["config"]), self.record),
            )
        else:
            self.record = {**self.record, "paused": move.get("paused") or {}}
        await pause_all(self._old, self.name)

    async def settle(self, ack_wait_s: float) -> None:
        """Wait until everything that the old server received before it closed the stream is stored."""
        while True:
            assigned = await self._read_last_assigned()
            stored = (await self._old.api(f"STREAM.INFO.{self.name}"))["state"]["last_seq"]
            if assigned == stored:
                break
            await asyncio.sleep(_POLL_S)
        await await_acks(self._old, self.name, ack_wait_s)

    async def _read_last_assigned(self) -> int:
        """Return the last sequence that the server assigned, also to messages that it has not stored yet.

        The message goes through the same queue as publishes, and is always rejected.
        """
        reply = await self._old.request(
            closed_subject(self.name), headers={"Nats-Expected-Last-Sequence": str(_IMPOSSIBLE_SEQ)}
        )
        error = reply.get("error") or {}
        found = _LAST_SEQUENCE.search(str(error.get("description")))
        if error.get("err_code") == _WRONG_LAST_SEQUENCE and found:
            return int(found[1])
        # A counter rejects it for another reason: then the sequence must not change for a while.
        before = (await self._old.api(f"STREAM.INFO.{self.name}"))["state"]["last_seq"]
        await asyncio.sleep(_SETTLE_PAUSE_S)
        return int(before)

    async def reopen(self) -> None:
        """Let the old stream accept publishes as before the move."""
        info = await self._old.api(f"STREAM.INFO.{self.name}")
        move = configs.get_move(info["config"])
        if move and move.get("state") == configs.CLOSED:
            await resume_all(self._old, self.name, move.get("paused") or {})
            await self._old.api(f"STREAM.UPDATE.{self.name}", configs.make_reopened(info["config"]))

    # The new stream

    async def complete_copy(self) -> None:
        """Copy the rest, and turn the copy into a stream that nobody can publish to yet."""
        config = configs.make_ready(self._original, self._get_base_record(), self._replicas)
        info = await self._new.find(f"STREAM.INFO.{self.name}")
        state = (configs.get_move(info["config"]) or {}).get("state") if info else ""
        if state != configs.READY:
            if self.is_restored:
                await self._restore()
            await self._await_complete()
            await self._new.api(f"STREAM.UPDATE.{self.name}", config)
        await self._await_complete()
        await self._remove_extra()
        await self._align_last_sequence()

    async def _restore(self) -> None:
        """Restore a backup of the closed stream. A restore that was interrupted may have left a part of the stream."""
        await self._new.find(f"STREAM.DELETE.{self.name}")
        config = configs.make_restoring(self._original, self._get_base_record(), self._replicas)
        await copy_stream(self._old, self._new, config)

    async def _await_complete(self) -> None:
        """Wait until the new stream has every message of the closed one."""
        deadline_s = time.monotonic() + self._complete_s
        while (found := await self._compare()).missing:
            if time.monotonic() > deadline_s:
                raise MoveFailed(
                    f"{self._new.name} lacks {found.missing} messages of {self.name} after {self._complete_s:g} s, the "
                    f"first is {found.first_missing}; run the command again, or 'headrace migrate undo'"
                )
            await asyncio.sleep(_POLL_S)

    async def _remove_extra(self) -> None:
        """Remove messages that the old server has removed since they were copied."""
        await self._new.api(f"STREAM.PURGE.{self.name}", {"filter": configs.opening_subject(self.name)})
        found = await self._compare()
        if found.extra_below:
            await self._new.api(f"STREAM.PURGE.{self.name}", {"seq": found.extra_below})
        for seq in found.extra:
            try:
                await self._new.api(f"STREAM.MSG.DELETE.{self.name}", {"seq": seq, "no_erase": True})
            except JetStreamError:
                # A limit or a TTL of the new stream was faster.
                continue

    async def _align_last_sequence(self) -> None:
        """Let both streams have the same last sequence, though the last messages may be gone.

        Otherwise messages that are published later would have sequences that consumers have passed.
        """
        old, new = await self._read_both(deleted=False)
        last, current = old["state"]["last_seq"], new["state"]["last_seq"]
        if current >= last:
            return
        if not new["state"]["messages"]:
            await self._new.api(f"STREAM.PURGE.{self.name}", {"seq": last + 1})
            return
        subject = configs.opening_subject(self.name)
        for start in range(current + 1, last + 1, _FILL_BATCH):
            seqs = range(start, min(start + _FILL_BATCH, last + 1))
            headers = ({"Nats-Msg-Id": f"{self.record['id']}-{seq}"} for seq in seqs)
            await asyncio.gather(*(self._new.request(subject, headers=each) for each in headers))
        await self._new.api(f"STREAM.PURGE.{self.name}", {"filter": subject})

    async def create_consumers(self) -> None:
        """Create the durable consumers at their positions; a backup has brought them already."""
        positions = await read_positions(self._old, self.name, self.record.get("paused") or {})
        if not self.is_restored:
            await asyncio.gather(
                *(create_consumer(self._old, self._new, self.name, each) for each in positions)
            )
        floors = {each.name: each.ack_floor for each in positions}
        self.record = {**self.record, "ack_floors": floors}

    async def verify(self) -> None:
        """Raise if the new stream lacks a message, or the old one has stored more than markers since it was closed."""
        deadline_s = time.monotonic() + _VERIFY_S
        while True:
            old, new = await self._read_both(deleted=True)
            found, state = _compare_states(old, new), new["state"]
            is_marker = (
                self._original.get("subject_delete_marker_ttl") and found.first_missing > state["last_seq"]
            )
            if not found.missing or is_marker:
                break
            # A message that expires at this moment may be gone on one server only.
            if time.monotonic() > deadline_s:
                raise MoveFailed(
                    f"{self._new.name} lacks {found.missing} messages of {self.name}, the first is {found.first_missing}; "
                    "run the command again, or 'headrace migrate undo'"
                )
            await asyncio.sleep(_POLL_S)
        self.record = {**self.record, "last_seq": state["last_seq"], "messages": state["messages"]}

    async def open(self) -> None:
        """Let the new stream accept publishes: from here on only a move back returns to the old server."""
        config = configs.make_open(self._original, self._get_receipt(), self._replicas)
        await self._new.api(f"STREAM.UPDATE.{self.name}", config)

    async def finish(self) -> None:
        """Resume the consumers, copy late delete markers, and mark the old stream as moved."""
        info = await self._new.api(f"STREAM.INFO.{self.name}")
        receipt = configs.get_move(info["config"]) or {}
        if self.is_restored:
            await await_restored(self._old, self._new, self.name)
            await resume_all(self._new, self.name, receipt.get("paused") or {})
        if self._original.get("subject_delete_marker_ttl"):
            await copy_late_markers(self._old, self._new, self.name, receipt.get("last_seq", 0))
        old = (await self._old.api(f"STREAM.INFO.{self.name}"))["config"]
        replaced = (configs.get_move(old) or {}).get("replaced")
        moved = configs.set_move(old, {**receipt, "state": configs.MOVED, "replaced": replaced})
        await self._old.api(f"STREAM.UPDATE.{self.name}", moved)
        self.record = receipt

    async def discard_copy(self) -> None:
        """Remove the stream of the new server; never one that accepts publishes."""
        info = await self._new.find(f"STREAM.INFO.{self.name}")
        state = (configs.get_move(info["config"]) or {}).get("state") if info else configs.COPYING
        if state not in (configs.COPYING, configs.READY):
            raise MoveFailed(f"{self.name} is in use on {self._new.name}; use 'headrace migrate move --back'")
        # Also if there is no stream: a restore that has just begun reserves the name.
        await self._new.find(f"STREAM.DELETE.{self.name}")

    # Requests

    def _get_base_record(self) -> configs.Move:
        return {
            key: self.record[key]
            for key in ("id", "from", "to", "streams", "started", "copy")
            if key in self.record
        }

    def _get_receipt(self) -> configs.Move:
        keys = ("paused", "ack_floors", "last_seq", "messages", "finished", "closed_s")
        return {**self._get_base_record(), **{key: self.record[key] for key in keys if key in self.record}}

    async def _compare(self) -> Difference:
        return _compare_states(*await self._read_both(deleted=True))

    async def _read_both(self, *, deleted: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        body = {"deleted_details": True} if deleted else None
        old = await self._old.api(f"STREAM.INFO.{self.name}", body)
        new = await self._new.api(f"STREAM.INFO.{self.name}", body)
        return old, new


def _is_near(old: dict[str, Any], new: dict[str, Any], mirror: dict[str, Any]) -> bool:
    """Return whether a mirror has almost all messages.

    The last messages of the old stream may be gone, so that the mirror never gets their sequences. That it has no lag does
    not suffice: nats-server reports none before the first message arrives.
    """
    is_idle = mirror.get("lag") == 0 and mirror.get("active", -1) >= 0
    is_full = old["messages"] - new["messages"] <= _NEAR_MESSAGES
    return old["last_seq"] - new["last_seq"] <= _NEAR_MESSAGES or (is_idle and is_full)


def _compare_states(old: dict[str, Any], new: dict[str, Any]) -> Difference:
    return compare(LiveSequences.from_state(old["state"]), LiveSequences.from_state(new["state"]))
