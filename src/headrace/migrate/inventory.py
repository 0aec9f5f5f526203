"""What a server has: its account, streams and their consumers, read through the API."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass, field
from typing import Any

from headrace.migrate.jetstream_server import JetStreamServer, NoReply

KV_PREFIX, OBJECT_PREFIX = "KV_", "OBJ_"
CLAIM_STREAMS = ("CLAIMS", "CLAIMS_AUDIT")
SPARK_PREFIXES = ("SPARK_PROGRESS_", "SPARK_STAGING_")
_NAMESPACE_SUBJECTS = "$CLAIMS.namespace.*"
_REACH_S = 2.0


@dataclass(frozen=True)
class StreamItem:
    """A stream and its consumers, as the API reports them."""

    info: dict[str, Any]
    consumers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.info["config"]
        return found

    @property
    def kind(self) -> str:
        """What the stream is for, as a word of `MoveFinding.kind`."""
        if self.name.startswith(KV_PREFIX):
            return "bucket"
        if self.name.startswith(OBJECT_PREFIX):
            return "objects"
        if self.name in CLAIM_STREAMS:
            return "claims"
        return "spark" if self.name.startswith(SPARK_PREFIXES) else "stream"

    @property
    def label(self) -> str:
        """The name that users know: that of the bucket without its prefix."""
        if self.kind in ("bucket", "objects"):
            return self.name.removeprefix(KV_PREFIX).removeprefix(OBJECT_PREFIX)
        return self.name


@dataclass(frozen=True)
class Inventory:
    """The account of a server."""

    version: tuple[int, int, int]
    is_clustered: bool
    server_id: str
    max_payload: int
    domain: str
    account: dict[str, Any]
    streams: list[StreamItem]
    claim_namespaces: list[dict[str, Any]] = field(default_factory=list)

    def find(self, name: str) -> StreamItem | None:
        return next((each for each in self.streams if each.name == name), None)


async def take_inventory(server: JetStreamServer, *, with_consumers: bool = True) -> Inventory:
    """Read the account, its streams and their consumers."""
    account = await server.api("INFO", retry_s=_REACH_S)
    infos = await server.list_all("STREAM.LIST", "streams")
    infos.sort(key=lambda info: str(info["config"]["name"]))
    consumers: list[list[dict[str, Any]]] = [[] for _ in infos]
    if with_consumers:
        listings = (server.list_all(f"CONSUMER.LIST.{info['config']['name']}", "consumers") for info in infos)
        consumers = await asyncio.gather(*listings)
    return Inventory(
        server.version,
        server.is_clustered,
        server.server_id,
        server.max_payload,
        str(account.get("domain") or ""),
        account,
        [StreamItem(info, found) for info, found in zip(infos, consumers, strict=True)],
        await _list_claim_namespaces(server) if with_consumers else [],
    )


async def _list_claim_namespaces(server: JetStreamServer) -> list[dict[str, Any]]:
    """Return the configurations that the claim namespaces of the account have published."""
    registry = CLAIM_STREAMS[0]
    info = await server.find(f"STREAM.INFO.{registry}", {"subjects_filter": _NAMESPACE_SUBJECTS})
    found = []
    for subject in sorted(((info or {}).get("state") or {}).get("subjects") or ()):
        message = await server.find(f"STREAM.MSG.GET.{registry}", {"last_by_subj": subject})
        data = base64.b64decode(((message or {}).get("message") or {}).get("data") or b"")
        if data:
            found.append(json.loads(data))
    return found


async def can_reach(server: JetStreamServer, domain: str) -> bool:
    """Return whether a server reaches the JetStream of this domain through its leafnode connections."""
    try:
        reply = await server.api("INFO", prefix=f"$JS.{domain}.API", retry_s=_REACH_S)
    except NoReply:
        return False
    return str(reply.get("domain") or "") == domain
