"""One end of a simulated leafnode connection: a real session, whose bytes the simulation moves.

Owns what a session asks of its transport; there is no socket, TLS, password or compression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace._native import LeafnodeParser
from headrace.broker.leafnodes.interest_announcer import LeafnodeSet
from headrace.broker.leafnodes.leafnode_handshake import LeafnodeLocalInfo
from headrace.broker.leafnodes.leafnode_session import LeafnodeSession
from headrace.broker.routing.session import SessionIdentity
from headrace.errors import ProtocolError
from headrace.protocol import server_lines
from headrace.sim.network.sim_client import ANONYMOUS
from headrace.sim.sim_broker import SimBroker

_PAYLOAD_MAX = 1 << 20
#: Returns whether a message (subject, reply, header, payload) is lost in transit.
LossRule = Callable[[bytes, bytes, bytes, bytes], bool]


class _LossySession(LeafnodeSession):
    """A session whose messages can be lost."""

    __slots__ = ("should_lose",)
    should_lose: LossRule | None

    def send_msg(
        self, subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes
    ) -> None:
        if self.should_lose is None or not self.should_lose(subject, reply, header, payload):
            super().send_msg(subject, reply, queues, header, payload)

    def send_run(self, data: bytes | bytearray, count: int, size: int) -> None:
        """Send message by message, so that each can be lost."""
        if self.should_lose is None:
            super().send_run(data, count, size)
        else:
            LeafnodeParser(_RunSplitter(self), _PAYLOAD_MAX).feed(bytes(data))


class _RunSplitter:
    """Sends the messages of a run one by one."""

    authenticated = True

    def __init__(self, session: _LossySession) -> None:
        self.on_message = session.send_msg

    def takes_deliveries(self, subject: bytes) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a run contains only messages, not {name}")


class LeafnodeEnd:
    """One end of the connection, and the transport of its session.

    `outbound` has the bytes in transit to the other end.
    """

    client_ip = "sim"
    compression = "off"

    def __init__(
        self,
        broker: SimBroker,
        leafnodes: LeafnodeSet,
        *,
        solicited: bool,
        should_lose: LossRule | None = None,
        cid: int = 1,
    ) -> None:
        local_info = LeafnodeLocalInfo(broker.name, broker.name, "0", broker.domain, jetstream=True)
        self._leafnodes, self._local_info = leafnodes, local_info
        self.outbound = bytearray()
        self.failed = False
        self.session = _LossySession(leafnodes, self, cid, local_info, solicited=solicited)
        self.session.should_lose = should_lose
        self._parser = LeafnodeParser(self.session, _PAYLOAD_MAX)

    def collect(self) -> None:
        """Put the session's output in transit."""
        self.outbound += self.session.drain()
        dirty = self.session.router.dirty
        if self.session in dirty:
            dirty.remove(self.session)

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except ProtocolError as error:
            self.fail(error.text)

    # Interface for the session

    def authenticate(self, fields: Mapping[str, Any]) -> SessionIdentity | None:
        return ANONYMOUS

    def leafnodes(self, account: str) -> LeafnodeSet:
        return self._leafnodes

    def start_tls(self, *, requested: bool) -> None:
        """Continue without TLS, which is never used here."""
        self.session.send_connect()

    def negotiate_compression(self, offered: str) -> bool:
        return False

    def on_pong(self) -> None:
        """Do nothing."""

    def credentials(self, nonce: str) -> dict[str, str]:
        return {}

    def info(
        self, account: str, imports: dict[str, list[str]] | None, exports: dict[str, list[str]] | None
    ) -> bytes:
        local_info = self._local_info
        fields = {
            "server_name": local_info.name,
            "domain": local_info.domain,
            "cluster": local_info.name,
            "headers": True,
        }
        fields |= {"client_id": self.session.cid, "leafnode_urls": [], "info_on_connect": True}
        return server_lines.encode_info(
            fields | ({"connect_info": True, "remote_account": account} if account else {})
        )

    def may_subscribe(self, count: int) -> bool:
        return True

    def on_established(self) -> None:
        """Do nothing."""

    def on_remote_error(self, text: str) -> None:
        self.failed = True

    def fail(self, text: str | None) -> None:
        self.failed = True

    def flush(self) -> None:
        """Do nothing: the simulation collects the output when it moves bytes."""
