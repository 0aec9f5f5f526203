"""From the first INFO to the last byte: what a server announces, its pings, how it stops."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable

import pytest

from conformance.client import TIMEOUT_S, Client, Wire
from conformance.servers import Server, Setup

Launch = Callable[[Setup], Server]


class TestInfo:
    def test_info_has_the_fields_of_nats_server(self, server: Server, wire: Wire) -> None:
        info = wire.info
        assert info["version"] == "2.15.1"
        assert info["proto"] == 1
        assert info["headers"] is True
        assert info["jetstream"] is True
        assert info["api_lvl"] == 5
        assert (info["host"], info["port"]) == ("127.0.0.1", server.port)
        assert info["max_payload"] == 1048576
        assert info["client_ip"] == "127.0.0.1"
        assert re.fullmatch(r"N[A-Z2-7]{55}", info["server_id"])
        assert info["server_name"] == info["server_id"]

    @pytest.mark.parametrize(
        "field",
        [
            "auth_required",
            "tls_required",
            "tls_verify",
            "tls_available",
            "nonce",
            "connect_urls",
            "ldm",
            "domain",
        ],
    )
    def test_what_does_not_apply_is_absent(self, wire: Wire, field: str) -> None:
        assert field not in wire.info

    def test_the_line_ends_with_a_blank(self, server: Server) -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
            line = raw.makefile("rb").readline()
        assert line.startswith(b"INFO {")
        assert line.endswith(b"} \r\n")

    def test_clients_are_numbered(self, server: Server) -> None:
        with Wire(server.port) as first, Wire(server.port) as second:
            assert 0 < first.info["client_id"] < second.info["client_id"]

    def test_a_server_without_jetstream_does_not_announce_it(self, launch: Launch) -> None:
        server = launch(Setup(jetstream=False))
        with Client(server.port) as client:
            assert "jetstream" not in client.info
            assert client.request("$JS.API.INFO").status == "503"

    def test_the_name_can_be_chosen(self, launch: Launch) -> None:
        with Wire(launch(Setup(flags=("--server_name", "mill"))).port) as wire:
            assert wire.info["server_name"] == "mill"

    def test_a_second_one_follows_the_first_ping(self, wire: Wire) -> None:
        wire.send(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
        wire.expect(b"PONG\r\n")
        second = wire.read_info()
        assert (second["connect_info"], second["remote_account"]) == (True, "$G")
        assert second["client_id"] == wire.info["client_id"]
        wire.send(b"PING\r\nPING\r\n")
        wire.expect(b"PONG\r\n", b"PONG\r\n")

    def test_but_not_for_old_clients(self, wire: Wire) -> None:
        wire.send(b'CONNECT {"verbose":false,"protocol":0}\r\nPING\r\nPING\r\n')
        wire.expect(b"PONG\r\n", b"PONG\r\n")


class TestPings:
    def test_the_first_comes_soon_after_connecting(self, server: Server) -> None:
        with Wire(server.port, answer_pings=False) as wire:
            wire.send(b'CONNECT {"verbose":false,"protocol":1}\r\n')
            wire.expect(b"PING\r\n")

    def test_a_client_that_replies_to_pings_stays_connected(self, launch: Launch) -> None:
        """Replies more often than the limit; a single reply may take a second and more on a busy machine."""
        server = launch(Setup(settings={"ping_interval": '"25ms"', "ping_max": 60}, jetstream=False))
        with Wire(server.port, answer_pings=False) as wire:
            wire.send(b'CONNECT {"verbose":false}\r\n')
            for _ in range(65):
                wire.expect(b"PING\r\n")
                wire.send(b"PONG\r\n")

    def test_a_silent_client_is_disconnected(self, launch: Launch) -> None:
        server = launch(Setup(settings={"ping_interval": '"50ms"', "ping_max": 1}, jetstream=False))
        with Wire(server.port, answer_pings=False) as wire:
            wire.send(b'CONNECT {"verbose":false}\r\n')
            wire.expect_end(b"PING\r\n", b"-ERR 'Stale Connection'\r\n")


class TestEnding:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_asked_to_stop(self, fresh_server: Server, number: int) -> None:
        with Client(fresh_server.port) as client:
            fresh_server.signal(number)
            client.expect_end()
        assert fresh_server.wait() in (0, 1)

    def test_restart_on_the_same_port(self, fresh_server: Server) -> None:
        port = fresh_server.port
        for crash in (False, True):
            fresh_server.restart(crash=crash)
            assert fresh_server.port == port
            with Client(port) as client:
                client.flush()

    def test_lame_duck_mode_keeps_clients_for_a_while(self, launch: Launch) -> None:
        """Connected clients are notified and stay for a while, new ones are rejected; then the server stops."""

        def leaving(grace: str) -> Server:
            periods = {"lame_duck_duration": '"40s"', "lame_duck_grace_period": f'"{grace}"'}
            return launch(Setup(settings=periods, jetstream=False))

        server = leaving("30s")
        with Client(server.port) as client, Client(server.port, protocol=0) as old:
            server.signal(signal.SIGUSR2)
            while not (client.infos and client.infos[-1].get("ldm")):
                client._step(TIMEOUT_S)
            client.flush()
            old.flush()
            assert old.infos == []
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S).close()
        server = leaving("100ms")
        with Client(server.port, protocol=0) as client:
            server.signal(signal.SIGUSR2)
            client.expect_end()
        assert server.wait(60) == 0


class TestCommandLine:
    def test_info_has_a_version_of_three_parts(self, server: Server) -> None:
        with Wire(server.port) as wire:
            assert wire.info["version"].count(".") == 2

    def test_a_second_server_on_the_same_port_says_so(self, kind: str, server: Server) -> None:
        with pytest.raises(RuntimeError, match="address already in use"):
            Server(kind, Setup(flags=("-p", str(server.port)), jetstream=False))
