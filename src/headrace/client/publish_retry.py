"""When a publisher sends messages again that no stream could store at that moment, and in which order.

Owns the pauses and how long to try: a server may be starting, a cluster may elect a leader, a stream may be moving to
another server. Invariants: a refused message was stored nowhere, so sending it again stores it once. Messages on their way
to the same stream do not overtake it: after the pause the oldest one is sent alone, and the others wait until it is
stored or has failed. Must not know replies or connections.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headrace.client.publish_record import Record
from headrace.client.publish_window import PublishWindow

#: The pause before refused messages are sent again.
RETRY_PAUSE_S = 0.25


@dataclass
class _WaitingMessages:
    """Refused messages of one stream or subject, and those that wait behind them; `probe` was sent again alone."""

    numbers: set[int] = field(default_factory=set)
    probe: int | None = None


class Refusals:
    """Messages that no stream could store: retried after a pause, and failed when the time is over.

    `stream` is the only stream of the publisher; without it each subject may belong to another one.
    """

    def __init__(self, window: PublishWindow, retry_for_s: float, stream: str | None) -> None:
        self._window = window
        self._retry_for_s = retry_for_s
        self._stream = stream
        self._waiting: dict[str, _WaitingMessages] = {}
        self._retry_at_s: float | None = None
        self._is_batch_paused = False

    @property
    def wait_s(self) -> float | None:
        """How long to wait until messages are sent again; None if none were refused."""
        return None if self._retry_at_s is None else max(self._retry_at_s - _now_s(), 0.0)

    @property
    def is_paused(self) -> bool:
        """Whether nothing may be sent at all."""
        return self._is_batch_paused

    @property
    def are_waiting(self) -> bool:
        """Whether some messages wait until others are stored."""
        return bool(self._waiting)

    def refuse(self, number: int, error: Exception) -> None:
        """Let a message be sent again; fail it if that was tried for long enough."""
        record = self._window.get(number)
        if record is None:
            return
        now_s = _now_s()
        waiting = self._waiting.setdefault(self._get_key(record), _WaitingMessages())
        self._add(waiting, number, record, now_s)
        if self._retry_at_s is None or number == waiting.probe:
            self._retry_at_s = now_s + RETRY_PAUSE_S
        if number == waiting.probe:
            waiting.probe = None
        if self._is_over(record, now_s) and number == min(waiting.numbers):
            self._fail_subject(waiting, record.subject, error)

    def on_settled(self, number: int, record: Record) -> None:
        """A message was stored, or failed for a reason of its own: its stream listens, so the others need not wait."""
        waiting = self._waiting.get(self._get_key(record))
        if waiting is not None and number == waiting.probe:
            self._release(self._get_key(record))

    def must_wait(self, number: int, record: Record) -> bool:
        """Return whether a message must not be sent now, because it would overtake a refused one."""
        waiting = self._waiting.get(self._get_key(record))
        if waiting is None or number == waiting.probe:
            return False
        self._add(waiting, number, record, _now_s())
        return True

    def resume(self) -> None:
        """Send the oldest message of each stream again, if the pause is over."""
        if self._retry_at_s is None or self._retry_at_s > _now_s():
            return
        self._is_batch_paused = False
        for key, waiting in list(self._waiting.items()):
            if waiting.probe is not None and self._window.get(waiting.probe) is not None:
                continue  # its reply decides
            waiting.numbers = {each for each in waiting.numbers if self._window.get(each) is not None}
            if waiting.probe is not None or not waiting.numbers:
                self._release(key)  # it failed because there was no reply
            else:
                waiting.probe = min(waiting.numbers)
                self._window.send_again([waiting.probe])
        self._retry_at_s = _now_s() + RETRY_PAUSE_S if self._waiting else None

    def pause_batch(self, head: int, error: Exception) -> None:
        """The first message of a batch was refused: send nothing for a while, or fail it if that was tried long enough.

        No stream listens for the other messages on its subject, either: their time starts now, too.
        """
        refused, now_s = self._window.get(head), _now_s()
        if refused is None:
            return
        for number in range(head, self._window.sent + 1):
            record = self._window.get(number)
            if record and record.subject == refused.subject and record.refused_s is None:
                record.refused_s = now_s
        if self._is_over(refused, now_s):
            self._window.fail(head, error)
        else:
            self._is_batch_paused = True
            self._retry_at_s = now_s + RETRY_PAUSE_S
            refused.sent_s = None

    def _get_key(self, record: Record) -> str:
        return self._stream or record.subject

    def _is_over(self, record: Record, now_s: float) -> bool:
        return record.refused_s is not None and now_s - record.refused_s >= self._retry_for_s

    def _add(self, waiting: _WaitingMessages, number: int, record: Record, now_s: float) -> None:
        waiting.numbers.add(number)
        record.sent_s = None
        if record.refused_s is None:
            record.refused_s = now_s

    def _release(self, key: str) -> None:
        self._window.send_again(self._waiting.pop(key).numbers)

    def _fail_subject(self, waiting: _WaitingMessages, subject: str, error: Exception) -> None:
        """Fail the messages on a subject that have waited long enough; the next one is sent without a pause."""
        now_s = _now_s()
        for number in sorted(waiting.numbers):
            record = self._window.get(number)
            if record and record.subject == subject and self._is_over(record, now_s):
                self._window.fail(number, error)
                waiting.numbers.discard(number)
        self._retry_at_s = now_s


def _now_s() -> float:
    return asyncio.get_running_loop().time()
