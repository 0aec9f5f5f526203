"""A stale replica: direct gets are answered from an old copy of a stream; all other requests go to the server.

Requests use the prefix `$JS.BEHIND.API` (option `domain=BEHIND`). The replica is a real stream, a copy of the first
messages. It replies with the name of its upstream, like a follower, or with its own name, like a mirror. So a test
knows exactly which messages the replies lack.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from typing import Any

from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, Msg, ServerAddress

DOMAIN = "BEHIND"
_PREFIX = b"$JS.%s.API." % DOMAIN.encode()
_GET = b"DIRECT.GET."
_DEADLINE_S = 90.0


class Behind:
    """Serves one stream's direct gets from a copy that is made on creation; a context manager."""

    def __init__(self, url: str, stream: str, *, as_mirror: bool = False) -> None:
        self.address = ServerAddress(servers=(url,), timeout_s=_DEADLINE_S)
        self.stream = stream
        # As long as the stream's name, so that it can be replaced in a header.
        self.copy = f"x{stream[1:]}"
        self.answers = 0
        #: After this many replies it has caught up.
        self.answers_max = 1 << 30
        #: Requests with these prefixes get no reply.
        self.silent: tuple[bytes, ...] = ()
        self._as_mirror = as_mirror
        self._ended = threading.Event()
        self._replies: dict[bytes, bytes] = {}
        self._make_copy()
        self._link = BlockingConnection(self.address)
        self._link.send(b"SUB %s> 2\r\n" % _PREFIX)
        self._link.request(f"$JS.API.STREAM.INFO.{stream}")  # so that it is subscribed
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Behind:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_DEADLINE_S)
        self._link.close()

    def _make_copy(self) -> None:
        """Mirror the stream as it is now, then stop the mirroring."""
        link = BlockingConnection(self.address)
        try:
            last = _call(link, f"STREAM.INFO.{self.stream}")["state"]["last_seq"]
            config = {"name": self.copy, "mirror": {"name": self.stream}, "allow_direct": True}
            _call(link, f"STREAM.CREATE.{self.copy}", config)
            deadline = time.monotonic() + _DEADLINE_S
            while _call(link, f"STREAM.INFO.{self.copy}")["state"]["last_seq"] < last:
                assert time.monotonic() < deadline, "the copy is not complete in time"
                time.sleep(0.02)
            alone = {"name": self.copy, "subjects": [f"{self.copy}.cut"], "mirror_direct": False}
            _call(link, f"STREAM.UPDATE.{self.copy}", {**alone, "allow_direct": True})
        finally:
            link.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(ConnectionFailed):
                for frame in self._link.iter_messages(0.1):
                    self._pass_on(frame)
                    if self._ended.is_set():
                        return
            if self._link.closed:
                return

    def _pass_on(self, frame: Msg) -> None:
        if frame.subject in self._replies:
            self._answer(frame)
            return
        verb, reply, own = frame.subject.removeprefix(_PREFIX), frame.reply, self._link.new_inbox()
        if verb.startswith(self.silent or (b"\0",)):
            return
        stream = self.stream.encode()
        if re.match(re.escape(_GET + stream) + rb"(\.|$)", verb) and self.answers < self.answers_max:
            self.answers += 1
            self._replies[own] = reply
            verb, reply = verb.replace(stream, self.copy.encode(), 1), own
        sizes = (verb, reply, len(frame.payload), frame.payload)
        self._link.send(b"PUB $JS.API.%s %s %d\r\n%s\r\n" % sizes)

    def _answer(self, frame: Msg) -> None:
        header, payload = frame.header, frame.payload
        if not self._as_mirror:
            names = [b"Nats-Stream: %s\r\n" % name.encode() for name in (self.copy, self.stream)]
            header = header.replace(*names)
        sizes = (self._replies[frame.subject], len(header), len(header) + len(payload), header, payload)
        self._link.send(b"HPUB %s %d %d\r\n%s%s\r\n" % sizes)


def _call(link: BlockingConnection, verb: str, body: Any = None) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(link.request(f"$JS.API.{verb}", body).payload)
    assert "error" not in answer, answer["error"]
    return answer
