"""Backup and restore as a client does them, for tests that move streams between servers."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from conformance.client import Client, Message


class Backup(NamedTuple):
    """A backup as a client stores it."""

    answer: dict[str, Any]
    data: bytes
    chunks: list[Message]


def take(client: Client, stream: str, **options: Any) -> Backup:
    """Back up a stream, acknowledging every chunk."""
    deliver = f"{client.inbox}s.{stream}"
    sid = client.subscribe(deliver)
    answer = client.api(f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": deliver, **options})
    assert "error" not in answer, answer
    chunks = [client.next(sid)]
    while chunks[-1].payload:
        if chunks[-1].reply:
            client.publish(chunks[-1].reply)
        chunks.append(client.next(sid))
    client.unsubscribe(sid)
    return Backup(answer, b"".join(chunk.payload for chunk in chunks), chunks)


def give(
    client: Client, stream: str, data: bytes, config: dict[str, Any], size: int = 100_000
) -> dict[str, Any]:
    """Restore a stream from chunks; return the last reply, or the first error."""
    started = client.api(f"STREAM.RESTORE.{stream}", {"config": config})
    assert "error" not in started, started
    for at in range(0, len(data), size):
        message = client.request(started["deliver_subject"], data[at : at + size])
        if message.payload:
            refused: dict[str, Any] = message.json
            return refused
    answer: dict[str, Any] = client.request(started["deliver_subject"], b"").json
    return answer


def messages(client: Client, stream: str) -> list[tuple[Any, ...]]:
    """Return all messages of a stream, by sequence."""
    found = []
    state = client.api(f"STREAM.INFO.{stream}")["state"]
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        answer = client.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
        if "error" not in answer:
            message = answer["message"]
            header, data = (base64.b64decode(message.get(key, "")) for key in ("hdrs", "data"))
            found.append((seq, message["subject"], header, data, message["time"]))
    return found


def shown(info: dict[str, Any]) -> dict[str, Any]:
    """Return a stream's state without what a restore cannot recover: when removed messages were stored."""
    return {key: value for key, value in info["state"].items() if key not in ("last_ts",)}


def consumer(client: Client, stream: str, name: str) -> dict[str, Any]:
    """Return a consumer's info without its times."""
    info = client.api(f"CONSUMER.INFO.{stream}.{name}")
    for pair in ("delivered", "ack_floor"):
        info[pair].pop("last_active", None)
    info["config"].pop("metadata", None)
    return {key: value for key, value in info.items() if key not in ("created", "ts", "cluster")}


def encode(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
