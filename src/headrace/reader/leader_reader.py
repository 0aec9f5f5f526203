"""Reads from a stream's leader, whose answers decide where a read ends.

Any replica of a stream, and any mirror, answers direct gets; one that lags omits messages or returns older ones, and
its replies do not show that. Only the leader answers `STREAM.MSG.GET` and `STREAM.INFO`. Owns the requests to the
leader and reading messages with them, which is slow (one request per message, many in flight) but always correct.
Invariant: nothing here is concluded from the reply of a replica. Must not know Spark or Arrow.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, ServerRejected
from headrace.reader.direct_get_decode import StoredMessage
from headrace.reader.options import ReadOptions
from headrace.reader.stream_admin import StreamError, call_leader, parse_time_ns, refuse

#: Requests in flight; a server drops API requests when thousands are queued.
_REQUESTS_MAX = 64
#: Maximum number of sequences of one walk.
_WALK = 128
#: Sequences in the first round of a read, when the size of messages is unknown, and how much the next round may grow.
_FIRST_SPAN = 8
_GROWTH = 8
_NO_MESSAGE = 10037


class _Budget:
    """Bytes of messages that all walks together may still read."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def spend(self, message: StoredMessage) -> None:
        self._left -= _size(message)


@dataclass(slots=True)
class _Walk:
    """Reads the messages of a subject from `at` up to `end`, one after the other."""

    subject: str
    at: int
    end: int
    budget: _Budget
    found: list[StoredMessage] = field(default_factory=list)
    is_done: bool = False

    @property
    def may_begin(self) -> bool:
        return not self.budget.is_spent

    def make_request(self) -> dict[str, Any]:
        """Ask for the first message at or after `at`."""
        return {"next_by_subj": self.subject, "seq": self.at}

    def on_reply(self, message: StoredMessage | None) -> bool:
        """Record the first message at or after `at`; return whether to continue."""
        if message is None or message.seq >= self.end:
            self.is_done = True
            return False
        self.found.append(message)
        self.budget.spend(message)
        self.at = message.seq + 1
        self.is_done = self.at >= self.end
        return not self.is_done and not self.budget.is_spent


class _Search:
    """Finds the last message of a subject below `end`: first at a guess, then by bisection."""

    def __init__(self, subject: str, guess: int, end: int) -> None:
        self.subject = subject
        self.may_begin = True
        self.at = guess or max(end // 2, 1)
        self.found: list[StoredMessage] = []
        self._end = end
        #: The last message is in this range, or is the one already found.
        self._low, self._high = 1, end

    def make_request(self) -> dict[str, Any]:
        """Ask for the first message at or after `at`."""
        return {"next_by_subj": self.subject, "seq": self.at}

    def on_reply(self, message: StoredMessage | None) -> bool:
        """Record the first message at or after `at`; return whether to continue."""
        if message is None or message.seq >= self._end:
            self._high = self.at
            self.at = (self._low + self._high) // 2
        else:
            is_first = not self.found
            self.found = [message]
            self._low = message.seq + 1
            # Usually the guess was right and nothing follows it.
            self.at = self._low if is_first else (self._low + self._high) // 2
        return self._low < self._high


class _Newest:
    """Finds the newest message of a subject."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.may_begin = True
        self.found: list[StoredMessage] = []

    def make_request(self) -> dict[str, Any]:
        """Ask for the newest message."""
        return {"last_by_subj": self.subject}

    def on_reply(self, message: StoredMessage | None) -> bool:
        """Record the message; nothing follows."""
        self.found = [message] if message is not None else []
        return False


_Steps = _Walk | _Search | _Newest


class LeaderReader:
    """Queries the leader of one stream over a connection."""

    def __init__(self, options: ReadOptions, link: BlockingConnection) -> None:
        self._options = options
        self._link = link
        self._subject = f"{options.api_prefix}.STREAM.MSG.GET.{options.stream}"

    def next_seq(self, at: int) -> int:
        """Return the first message of the query's subjects from `at` on; 0 if there is none."""
        message = self.find_message(at, self._options.subject or ">")
        return message.seq if message is not None else 0

    def find_message(self, at: int, subject: str = ">") -> StoredMessage | None:
        """Return the first message of these subjects from `at` on; None if there is none."""
        wanted = {"next_by_subj": subject, "seq": at}
        try:
            return self._parse_reply(self._link.request(self._subject, wanted).payload)
        except ServerRejected as error:
            raise self._permission_error(error) from error

    def last_seq(self) -> int:
        """Return the last sequence that the stream has assigned."""
        subject = f"{self._options.api_prefix}.STREAM.INFO.{self._options.stream}"
        return int(call_leader(self._link, subject)["state"]["last_seq"])

    def read(self, start: int, end: int, bytes_max: int) -> tuple[list[StoredMessage], int]:
        """Return the query's messages from `start` up to `end`, and the sequence (excluded) up to which they are
        complete.

        Stops before `end` after about `bytes_max` bytes: rounds start small and grow with the size of the messages
        found.
        """
        found: list[StoredMessage] = []
        at, span, left = start, _FIRST_SPAN, bytes_max
        while at < end and left > 0:
            messages, reached = self._read_round(at, min(at + span, end), bytes_max)
            found += messages
            size = sum(map(_size, messages))
            span *= _GROWTH
            if size:
                span = max(min(span, left * (reached - at) // size), _FIRST_SPAN)
            at, left = reached, left - size
        return found, at

    def _read_round(self, start: int, end: int, bytes_max: int) -> tuple[list[StoredMessage], int]:
        """Read one round with concurrent walks.

        All stop when the budget is spent: messages after the first unfinished walk are dropped and read again.
        """
        subject = self._options.subject or ">"
        budget = _Budget(bytes_max)
        step = min(-(-(end - start) // _REQUESTS_MAX), _WALK)
        walks = [_Walk(subject, cut, min(cut + step, end), budget) for cut in range(start, end, step)]
        self._finish(walks)
        found: list[StoredMessage] = []
        for walk in walks:
            found += walk.found
            if not walk.is_done:
                return found, walk.at
        return found, end

    def read_last(self, guesses: dict[str, int], end: int) -> list[StoredMessage]:
        """Return the last message below `end` of each subject, in sequence order.

        `guesses` has for each subject the probable sequence of its last message, or 0.
        """
        searches = [_Search(subject, guess, end) for subject, guess in guesses.items()]
        self._finish(searches)
        return sorted(message for search in searches for message in search.found)

    def find_newest(self, subjects: Sequence[str]) -> dict[str, int]:
        """Return the sequence of the newest message of each subject; 0 if it has none."""
        searches = [_Newest(subject) for subject in subjects]
        self._finish(searches)
        return {each.subject: each.found[0].seq if each.found else 0 for each in searches}

    def _finish(self, walks: Sequence[_Steps]) -> None:
        """Run all walks, many at once."""
        waiting: dict[bytes, _Steps] = {}
        # A walk is not started if the budget is spent: its messages could not be returned.
        rest = (walk for walk in walks if walk.may_begin)
        try:
            self._begin(rest, waiting, _REQUESTS_MAX)
            for frame in (
                self._link.iter_messages(self._link.address.timeout_s, self._subject) if waiting else ()
            ):
                walk = waiting.pop(frame.subject, None)
                if walk is None:
                    continue
                if walk.on_reply(self._parse_reply(frame.payload, frame.header)):
                    self._ask(walk, waiting)
                else:
                    self._begin(rest, waiting, 1)
                if not waiting:
                    return
        except ServerRejected as error:
            raise self._permission_error(error) from error

    def _begin(self, rest: Iterator[_Steps], waiting: dict[bytes, _Steps], count: int) -> None:
        for walk in islice(rest, count):
            self._ask(walk, waiting)

    def _ask(self, walk: _Steps, waiting: dict[bytes, _Steps]) -> None:
        reply = self._link.new_inbox()
        waiting[reply] = walk
        body = json.dumps(walk.make_request()).encode()
        self._link.send(b"PUB %s %s %d\r\n%s\r\n" % (self._subject.encode(), reply, len(body), body))

    def _parse_reply(self, payload: bytes, header: bytes = b"") -> StoredMessage | None:
        """Return the message of a reply; None if there is none."""
        if header[:12] == b"NATS/1.0 503":
            raise ConnectionFailed(f"no responders on {self._subject}")
        answer: dict[str, Any] = json.loads(payload)
        error = answer.get("error")
        if error is None:
            return _message(answer["message"])
        if error.get("err_code") == _NO_MESSAGE:
            return None
        raise refuse(error, f"stream {self._options.stream!r}")

    def _permission_error(self, error: ServerRejected) -> StreamError:
        return StreamError(
            f"cannot verify that stream {self._options.stream!r} was read completely, because this user may not publish to "
            f"{self._subject}: {error}. Direct gets may be answered by replicas and mirrors that lag. Grant the "
            "permission, or read the stream's files with option `path`"
        )


def _size(message: StoredMessage) -> int:
    return len(message.header) + len(message.payload) + len(message.subject)


def _message(found: dict[str, Any]) -> StoredMessage:
    return StoredMessage(
        int(found["seq"]),
        parse_time_ns(found["time"]),
        found["subject"].encode(),
        base64.b64decode(found.get("hdrs") or ""),
        base64.b64decode(found.get("data") or ""),
    )
