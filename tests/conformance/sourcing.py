"""Helpers for tests of mirrors and sources: streams that copy, their content, and a scripted upstream."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from conformance.client import Client, Message
from conformance.consumer_client import SECOND, eventually

SOURCE = "Nats-Stream-Source"


class Stored(NamedTuple):
    """A message as returned by STREAM.MSG.GET."""

    seq: int
    subject: str
    header: str
    data: str
    time: str

    @property
    def origin(self) -> str:
        """The value of the header that sources add, which is always the last."""
        last = self.header.split("\r\n")[-3]
        assert last.startswith(SOURCE + ": "), self.header
        return last.partition(": ")[2]


class Copying:
    """Streams whose names begin with `name`; all are deleted at the end, copies first."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name
        self._made: list[str] = []

    def stream(self, tail: str, **config: Any) -> dict[str, Any]:
        """Create `name` + tail; `subjects` are those below its name unless it copies."""
        stream = self.name + tail
        if not ("mirror" in config or "sources" in config):
            config.setdefault("subjects", [f"{stream}.>"])
        info = self.client.api(f"STREAM.CREATE.{stream}", {"name": stream, **config})
        if "error" not in info:
            self._made.append(stream)
        return info

    def made(self, tail: str, **config: Any) -> dict[str, Any]:
        info = self.stream(tail, **config)
        assert "error" not in info, info["error"]
        return info

    def update(self, tail: str, **config: Any) -> dict[str, Any]:
        stream = self.name + tail
        return self.client.api(f"STREAM.UPDATE.{stream}", {"name": stream, **config})

    def delete(self, tail: str) -> None:
        self._made.remove(self.name + tail)
        assert self.client.api(f"STREAM.DELETE.{self.name}{tail}")["success"]

    def close(self) -> None:
        for stream in reversed(self._made):
            self.client.api(f"STREAM.DELETE.{stream}")

    def put(self, tail: str, *payloads: str, token: str = "x", **headers: str) -> None:
        """Store messages in an upstream."""
        fields = {key.replace("_", "-"): value for key, value in headers.items()} or None
        for payload in payloads:
            ack = self.client.store(f"{self.name}{tail}.{token}", payload, fields)
            assert "error" not in ack, ack

    def info(self, tail: str) -> dict[str, Any]:
        return self.client.api(f"STREAM.INFO.{self.name}{tail}")

    def state(self, tail: str) -> tuple[int, int, int, int]:
        """Return messages, first and last sequence, and the sequences deleted in between."""
        state = self.info(tail)["state"]
        return state["messages"], state["first_seq"], state["last_seq"], state.get("num_deleted", 0)

    def until(self, tail: str, messages: int, timeout_s: float = 90.0) -> None:
        """Wait until a stream has this many messages."""
        eventually(lambda: self.state(tail)[0] == messages, timeout_s)

    def until_last(self, tail: str, seq: int, timeout_s: float = 90.0) -> None:
        eventually(lambda: self.state(tail)[2] == seq, timeout_s)

    def get(self, tail: str, seq: int) -> Stored | None:
        answer = self.client.api(f"STREAM.MSG.GET.{self.name}{tail}", {"seq": seq})
        if "error" in answer:
            return None
        found = answer["message"]
        header = base64.b64decode(found.get("hdrs", "")).decode()
        data = base64.b64decode(found.get("data", "")).decode()
        return Stored(found["seq"], found["subject"], header, data, found["time"])

    def all(self, tail: str) -> list[Stored]:
        _, first, last, _ = self.state(tail)
        found = [self.get(tail, seq) for seq in range(first, last + 1)]
        return [each for each in found if each is not None]

    def data(self, tail: str) -> list[str]:
        return [each.data for each in self.all(tail)]

    def consumer(self, tail: str, name: str, **config: Any) -> dict[str, Any]:
        """Create a durable consumer that a mirror or source can use."""
        full = {"durable_name": name, "ack_policy": "flow_control", "flow_control": True,
                "idle_heartbeat": SECOND, "max_deliver": -1, **config}  # fmt: skip
        stream = self.name + tail
        info = self.client.api(
            f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": full, "action": ""}
        )
        assert "error" not in info, info
        return info

    def consumers(self, tail: str) -> list[str]:
        names: list[str] = self.client.api(f"CONSUMER.NAMES.{self.name}{tail}")["consumers"]
        return names

    def reset(self, tail: str, consumer: str, body: Any = None) -> dict[str, Any]:
        return self.client.api(f"CONSUMER.RESET.{self.name}{tail}.{consumer}", body)


class PlayedOrigin:
    """A scripted upstream behind the API prefix `api`."""

    def __init__(self, client: Client, api: str) -> None:
        self.client, self.api = client, api
        self._requests = client.subscribe(f"{api}.CONSUMER.>")
        self.deliver = ""
        self.consumer = ""
        self.stream = ""

    @property
    def external(self) -> dict[str, str]:
        return {"api": self.api, "deliver": ""}

    def request(self, timeout_s: float = 60.0) -> Message:
        """Return the next request of the server that copies."""
        return self.client.next(self._requests, timeout_s)

    def refuse(self, request: Message, code: int, err_code: int) -> None:
        error = {"code": code, "err_code": err_code, "description": "no"}
        kind = "io.nats.jetstream.api.v1.consumer_create_response"
        self.client.publish(request.reply, json.dumps({"type": kind, "error": error}).encode())

    def accept(self, request: Message, seq: int = 0, suffix: str = "", **headers: str) -> dict[str, Any]:
        """Accept a create request; return its body."""
        body: dict[str, Any] = request.json
        config = body["config"]
        self.stream, self.consumer = body["stream_name"], config["name"] + suffix
        self.deliver = config["deliver_subject"]
        answer = {
            "type": "io.nats.jetstream.api.v1.consumer_create_response",
            "stream_name": self.stream,
            "name": self.consumer,
            "created": "2026-01-01T00:00:00Z",
            "config": {**config, "name": self.consumer},
            "delivered": {"consumer_seq": 0, "stream_seq": seq},
            "ack_floor": {"consumer_seq": 0, "stream_seq": seq},
            "num_ack_pending": 0, "num_redelivered": 0, "num_waiting": 0, "num_pending": 0,
        }  # fmt: skip
        fields = {key.replace("_", "-"): value for key, value in headers.items()} or None
        self.client.publish(request.reply, json.dumps(answer).encode(), fields)
        self.client.flush()
        return body

    def status(self, text: str, reply: str = "", **headers: Any) -> None:
        lines = [f"NATS/1.0 100 {text}", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
        block = ("\r\n".join(lines) + "\r\n\r\n").encode()
        head = f"HPUB {self.deliver} {reply} {len(block)} {len(block)}\r\n".encode()
        self.client.send(head + block + b"\r\n")

    def heartbeat(self, dseq: int, seq: int, **headers: Any) -> None:
        self.status("Idle Heartbeat", Nats_Last_Consumer=dseq, Nats_Last_Stream=seq, **headers)
