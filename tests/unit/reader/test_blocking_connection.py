"""The blocking connection: authentication, TLS, several servers, pings."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from cli.identities import trusting_server
from conformance.servers import KINDS, Server, Setup
from headrace.reader import blocking_connection
from headrace.reader.blocking_connection import (
    BlockingConnection,
    ConnectionFailed,
    ServerAddress,
    _sign_nonce,
)
from support import certificates


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_proves_who_it_is_and_speaks_tls(kind: str, tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    config = (
        f'authorization: {{ user: "ann", password: "hush" }}\n'
        f'tls: {{ cert_file: "{made.cert}", key_file: "{made.key}" }}'
    )
    with Server(kind, Setup(config=config)) as server:
        known = ServerAddress(servers=(server.url,), user="ann", password="hush", tls_ca=made.ca)
        link = BlockingConnection(known)
        assert b"memory" in link.request("$JS.API.INFO").payload
        link.close()
        with pytest.raises(ConnectionFailed, match=r"rejected the connection: .*Authorization"):
            BlockingConnection(
                ServerAddress(servers=(server.url,), user="ann", password="loud", tls_ca=made.ca)
            )


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_shows_credentials_from_a_file(kind: str, tmp_path: Path) -> None:
    config, credentials = trusting_server(tmp_path)
    with Server(kind, Setup(config=config, jetstream=False)) as server:
        link = BlockingConnection(ServerAddress(servers=(server.url,), creds=str(credentials)))
        with pytest.raises(ConnectionFailed, match="no responders on nowhere"):
            link.request("nowhere")
        link.close()
        (tmp_path / "others").mkdir()
        _, strange = trusting_server(tmp_path / "others")
        with pytest.raises(ConnectionFailed, match=r"rejected the connection: .*Authorization"):
            BlockingConnection(ServerAddress(servers=(server.url,), creds=str(strange)))
    strange.write_text("no credentials")
    with pytest.raises(ConnectionFailed, match="is not a credentials file"):
        _sign_nonce(str(strange), "nonce")


def test_the_next_server_is_tried_and_pings_are_answered() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b'INFO {"server_name":"x"}\r\n')
            while b"PUB" not in b"".join(heard):
                heard.append(peer.recv(65536))
                if b"CONNECT" in heard[-1]:
                    peer.sendall(b"PONG\r\n")
            inbox = b"".join(heard).partition(b"PUB q ")[2].split(b" ")[0]
            peer.sendall(b"PING\r\nMSG %s 1 2\r\nhi\r\n" % inbox)
            heard.append(peer.recv(65536))

    thread = threading.Thread(target=serve)
    thread.start()
    link = BlockingConnection(
        ServerAddress(servers=("nats://127.0.0.1:1", f"nats://127.0.0.1:{listener.getsockname()[1]}"))
    )
    assert link.request("q").payload == b"hi"
    thread.join(60)
    link.close()
    listener.close()
    assert heard[-1] == b"PONG\r\n"


def test_connections_use_all_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every task of a Spark job would read through the first server of a cluster."""
    used: list[str] = []

    def connect(address: ServerAddress, server: str) -> tuple[Any, dict[str, Any]]:
        used.append(server)
        if server == "b":
            raise OSError("refused")
        return None, {}

    monkeypatch.setattr(blocking_connection, "_connect", connect)
    address = ServerAddress(servers=("a", "b", "c"))
    reached = {blocking_connection._connect_any(address) and used[-1] for _ in range(100)}
    assert reached == {"a", "c"}
    assert set(used) == {"a", "b", "c"}
