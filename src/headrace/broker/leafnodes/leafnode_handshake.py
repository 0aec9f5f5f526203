"""The handshake of a leafnode connection: what the two servers say about themselves in INFO and CONNECT.

Owns the content of both, on the side that dialed and on the side that was dialed. It sends nothing and knows neither
interest nor messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headrace.errors import ProtocolError
from headrace.protocol.json_exceptions import JSON_ERRORS

SAME_CLUSTER = "remote leafnode has same cluster name"
WRONG_PORT = "attempted to connect to wrong port"
CLIENT_ON_LEAFNODE_PORT = "attempted to connect to leaf node port"
#: The version of the protocol between servers in which they continue message traces.
PROTOCOL = 3
#: How long a server that dialed waits before it retries after an error that would only happen again.
LOOP_DELAY_S = 30.0
_DELAYS = (("Loop detected", LOOP_DELAY_S), (SAME_CLUSTER, 30.0), ("Permissions Violation", 30.0))


@dataclass(frozen=True, slots=True)
class LeafnodeLocalInfo:
    """What this server reports about itself."""

    server_id: str
    name: str
    version: str
    domain: str = ""
    jetstream: bool = False
    max_payload: int = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LeafnodePeer:
    """What the other server reports about itself."""

    name: str = ""
    cluster: str = ""
    domain: str = ""
    version: str = ""
    remote_account: str = ""
    protocol: int = 0

    def is_same_server(self, other: LeafnodePeer) -> bool:
        """Whether two connections come from the same account of the same server."""
        mine = (self.name, self.cluster, self.remote_account)
        return bool(self.name) and mine == (other.name, other.cluster, other.remote_account)


class DialingHandshake:
    """The handshake on the side that dialed; `info` has the fields of all INFO lines so far.

    `hub_role`: the other side is the spoke although this side dialed.
    """

    __slots__ = ("_local_info", "hub_role", "info", "peer")

    def __init__(self, local_info: LeafnodeLocalInfo, *, hub_role: bool) -> None:
        self._local_info = local_info
        self.hub_role = hub_role
        self.info: dict[str, Any] = {}
        self.peer = LeafnodePeer()

    @property
    def advertised_urls(self) -> list[str]:
        """More addresses of the other side, as it advertises them."""
        found = self.info.get("leafnode_urls")
        return [url for url in found if isinstance(url, str)] if isinstance(found, list) else []

    def receive_info(self, fields: Mapping[str, Any]) -> bool:
        """Apply an INFO; return whether it is the first, which has to be answered with CONNECT."""
        first = not self.info
        if first and not (fields.get("client_id") and "leafnode_urls" in fields):
            raise ProtocolError(WRONG_PORT)
        self.info = {**self.info, **fields}
        if first:
            self.peer = LeafnodePeer(
                name=str(fields.get("server_name") or fields.get("server_id") or ""),
                cluster=str(fields.get("cluster") or ""),
                domain=str(fields.get("domain") or ""),
                version=str(fields.get("version") or ""),
                protocol=get_protocol(fields.get("proto")),
            )
        elif fields.get("remote_account"):
            self.peer = replace(self.peer, remote_account=str(fields["remote_account"]))
        return first

    def encode_connect(
        self,
        account: str,
        credentials: Mapping[str, str],
        deny_imports: tuple[bytes, ...],
        compression: str,
    ) -> bytes:
        """Return the CONNECT line."""
        local = self._local_info
        fields: dict[str, Any] = {
            "version": local.version,
            **credentials,
            "server_id": local.server_id,
            "domain": local.domain,
            "name": local.name,
            "is_hub": self.hub_role,
            "cluster": local.name,
            "headers": True,
            "jetstream": local.jetstream,
            "compress_mode": compression,
            "deny_pub": [subject.decode() for subject in deny_imports],
            "remote_account": account,
            "protocol": PROTOCOL,
        }
        return b"CONNECT " + msgspec.json.encode({k: v for k, v in fields.items() if v}) + b"\r\n"


def parse_connect(body: bytes) -> tuple[dict[str, Any], LeafnodePeer]:
    """Parse the CONNECT of a server that dialed; raise ProtocolError if a client sent it."""
    fields = parse_object(body)
    if fields.get("lang"):
        raise ProtocolError(CLIENT_ON_LEAFNODE_PORT)
    names = ("name", "cluster", "domain", "version", "remote_account")
    texts = {name: str(fields.get(name) or "") for name in names}
    return fields, LeafnodePeer(**texts, protocol=get_protocol(fields.get("protocol")))


def get_protocol(value: object) -> int:
    """Return the version of the protocol that the other server uses; 0 if it names none."""
    return value if isinstance(value, int) else 0


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of an INFO or CONNECT; keys are returned in lower case."""
    try:
        found = msgspec.json.decode(body)
    except JSON_ERRORS:
        raise ProtocolError(None) from None
    if not isinstance(found, dict):
        raise ProtocolError(None)
    return {str(key).lower(): value for key, value in found.items()}


def get_reconnect_delay_s(error_text: str) -> float:
    """Return how long to wait before dialing again after an error from the other side."""
    return next((delay for start, delay in _DELAYS if start in error_text), 0.0)
