"""A server of the old version on a directory that is being filled; used by `generate.py` only."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client

from support.processes import Serving, serving

from .outcome import API

S = 1_000_000_000  # nanoseconds
FAR = 50 * 365 * 24 * 3600 * S


class World:
    """A server of the old version on a new directory, and a connection to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = {
            "config": "", "users": [""], "publishes": [], "pulls": [], "pushes": [], "claims": None,
            "reads": [], "gone": [], "ageing": [], "accept": False, "quiet_s": 1.0, "closed": "",
        }  # fmt: skip
        self.connections: list[Client] = []
        self._open: Any = None

    async def start(self) -> None:
        self._open = serving(self.folder, *self._flags())
        self.server: Serving = self._open.__enter__()
        for user in self.plan["users"]:
            words = {"user": user, "password": "secret"} if user else {}
            self.connections.append(await nats.connect(self.server.url, **words))

    def _flags(self) -> list[str]:
        config = self.plan["config"]
        return [*(["-c", str(self.folder / config)] if config else []), "-js", "-sd", str(self.folder)]

    async def stop(self, kill: bool) -> None:
        """Stop the server; record when."""
        for connection in self.connections:
            await connection.flush()
        if kill:
            self.server.process.kill()
        else:
            self.server.process.terminate()
        self.server.ended()
        for connection in self.connections:
            await connection.close()
        self.connections = []
        self._open.__exit__(None, None, None)
        (self.folder / "stderr").unlink()
        self.plan["closed"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")

    async def restart(self, kill: bool) -> None:
        await self.stop(kill)
        await self.start()

    @property
    def nc(self) -> Client:
        return self.connections[0]

    async def api(self, subject: str, body: object = None, user: int = 0) -> Any:
        payload = b"" if body is None else json.dumps(body).encode()
        answer = json.loads((await self.connections[user].request(API + subject, payload)).data)
        assert "error" not in answer, (subject, body, answer)
        return answer

    async def stream(self, name: str, user: int = 0, **config: Any) -> None:
        if "mirror" not in config and "sources" not in config:
            config.setdefault("subjects", [f"{name}.>"])
        await self.api(f"STREAM.CREATE.{name}", {"name": name, **config}, user)

    async def consumer(self, stream: str, name: str, user: int = 0, **config: Any) -> None:
        if "deliver_subject" not in config:
            config.setdefault("ack_policy", "explicit")
        whole = {"durable_name": name, "ack_wait": FAR, **config}
        if whole.get("ack_policy") == "none":
            del whole["ack_wait"]
        await self.api(
            f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": whole}, user
        )

    async def pub(self, subject: str, data: bytes = b"", user: int = 0, **headers: str) -> dict[str, Any]:
        """Publish and return the reply; underscores stand for hyphens in headers."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        answer = await self.connections[user].request(subject, data, timeout=60, headers=named or None)
        return json.loads(answer.data or b"{}")

    async def fill(self, name: str, count: int, size: int = 20, subjects: int = 3) -> None:
        for number in range(count):
            said = await self.pub(f"{name}.{number % subjects}", text(number, size))
            assert "error" not in said, said

    async def pull(self, stream: str, consumer: str, count: int, **request: Any) -> list[Any]:
        """Pull this many messages without acks."""
        inbox = self.nc.new_inbox()
        taken = await self.nc.subscribe(inbox)
        body = json.dumps({"batch": count, "expires": 5 * S, **request}).encode()
        await self.nc.publish(f"{API}CONSUMER.MSG.NEXT.{stream}.{consumer}", body, inbox)
        found = [await taken.next_msg(60) for _ in range(count)]
        await taken.unsubscribe()
        return found

    async def answer(self, message: Any, said: bytes) -> None:
        await self.nc.request(message.reply, said, timeout=60)

    def goes_on(self, *subjects: str, user: int = 0, **headers: str) -> None:
        """Record messages that the next version publishes."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self.plan["publishes"] += [[user, subject, "after the upgrade", named] for subject in subjects]

    def pulls(self, stream: str, *consumers: str, user: int = 0, **request: Any) -> None:
        self.plan["pulls"] += [[user, stream, consumer, request] for consumer in consumers]


def text(number: int, size: int) -> bytes:
    """Return a payload that compresses well and is different for each number."""
    word = b"%s-%d " % (hashlib.sha256(b"%d" % number).hexdigest()[:8].encode(), number)
    return (word * (size // len(word) + 1))[:size]
