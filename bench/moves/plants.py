"""Bugs that are planted in a copy of the tool, to show that `bench/move_kills.py` notices them.

Owns the bugs, as changed lines of the source. `kills.plants` applies them, and refuses a bug whose lines are not in the
source any more. The servers are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kills.plants import Change

STEPS = ("copy", "close", "settle", "complete", "consumers", "verify", "open", "finish")
VICTIMS = ("tool", "headrace", "node")
_MOVER, _STREAM, _CONSUMER = "migrate/mover.py", "migrate/stream_move.py", "migrate/consumer_move.py"
_CLOSE = '            ("close", lambda each: each.close()),\n'
_SETTLE = '            ("settle", lambda each: each.settle(self._ack_wait_s)),\n'
_COMPLETE = '            ("complete", lambda each: each.complete_copy()),\n'
_VERIFY = '            ("verify", lambda each: each.verify()),\n'
_OPEN = '            ("open", lambda each: each.open()),\n'
_NOT_MISSING = Change(_STREAM, "if not found.missing or is_marker:", "if found is not None or is_marker:")


class MovePlant(NamedTuple):
    """A bug: the steps and processes whose death can show it, and its changes."""

    steps: Sequence[str]
    victims: Sequence[str]
    changes: tuple[Change, ...]


PLANTS: Mapping[str, MovePlant] = {
    # The mirror becomes a stream without a comparison, and nothing compares them later.
    "comparison-skipped": MovePlant(
        ("close", "settle"),
        ("headrace", "node"),
        (
            Change(
                _STREAM,
                "while (found := await self._compare()).missing:",
                "while (found := await self._compare()).missing < 0:",
            ),
            Change(_STREAM, "            if assigned == stored:\n", "            if assigned >= 0:\n"),
            Change(_STREAM, "        await await_acks(self._old, self.name, ack_wait_s)\n", ""),
            _NOT_MISSING,
        ),
    ),
    # The new stream opens while the old one still accepts publishes.
    "opened-before-close": MovePlant(
        STEPS[:1],
        VICTIMS[:1],
        (Change(_MOVER, _CLOSE, _OPEN + _CLOSE), Change(_MOVER, _OPEN, ""), _NOT_MISSING),
    ),
    # The copy is complete and ready before the old stream is closed.
    "completed-before-close": MovePlant(
        STEPS[:1],
        VICTIMS[:1],
        (
            Change(_MOVER, _COMPLETE, ""),
            Change(_MOVER, _CLOSE, _COMPLETE + _CLOSE),
            Change(_MOVER, _VERIFY, _VERIFY.replace("each.verify()", "each.settle(0)")),
            Change(
                _STREAM,
                '        keys = ("paused", "ack_floors", "last_seq", "messages", "finished", "closed_s")\n',
                '        self.record |= {"last_seq": 0, "messages": 0}\n'
                '        keys = ("paused", "ack_floors", "last_seq", "messages", "finished", "closed_s")\n',
            ),
        ),
    ),
    # Consumers start one message too late.
    "floor-skipped": MovePlant(
        STEPS,
        VICTIMS,
        (Change(_CONSUMER, "start = position.ack_floor + 1", "start = position.ack_floor + 2"),),
    ),
    # A move that continues with a complete copy believes that it has consumers.
    "consumers-not-resumed": MovePlant(
        ("consumers", "verify"),
        ("tool",),
        (
            Change(
                _STREAM,
                "        await self._await_complete()\n        await self._remove_extra()\n",
                "        self.planted = state == configs.READY\n"
                "        await self._await_complete()\n        await self._remove_extra()\n",
            ),
            Change(
                _STREAM,
                "        if not self.is_restored:\n            await asyncio.gather(\n",
                "        if not self.is_restored and not self.planted:\n            await asyncio.gather(\n",
            ),
        ),
    ),
}
