"""A server inside an application."""

import asyncio
import ssl
import subprocess
import sys
from pathlib import Path

import nats
import pytest

import headrace
from headrace.client import connect
from headrace.config.options import OptionsError
from headrace.monitor.routes import make_pages
from headrace.monitor.server_history import ServerHistory
from support import certificates


async def round_trip(client: nats.NATS) -> None:
    messages = await client.subscribe("a.>")
    await client.publish("a.b", b"payload")
    message = await messages.next_msg(60)
    assert message.data == b"payload"
    await client.close()


def test_what_belongs_to_streams_is_loaded_where_there_are_some() -> None:
    program = """if True:
        import asyncio, sys
        import headrace

        async def run():
            async with headrace.Server():
                heavy = {"numpy", "headrace.storage", "headrace.broker.jetstream"}
                heavy |= {"headrace.auth.operator", "headrace.net.websocket_connection"}
                print(sorted(heavy & set(sys.modules)))

        asyncio.run(run())
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=150, check=True
    )
    assert done.stdout == "[]\n"


def test_a_start_with_streams_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    program = """if True:
        import asyncio, sys
        import numpy  # imports sysconfig itself from Python 3.14 on
        before = set(sys.modules)
        import headrace

        async def run():
            async with headrace.Server(store_dir=sys.argv[1]):
                slow = {"tempfile", "shutil", "zoneinfo", "sysconfig", "importlib.resources"}
                print(sorted(slow & set(sys.modules) - before))

        asyncio.run(run())
    """
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=150, check=True
    )
    assert done.stdout == "[]\n"


async def test_on_a_free_port() -> None:
    async with headrace.Server() as one, headrace.Server() as two:
        assert one.port != two.port
        assert one.url == f"nats://127.0.0.1:{one.port}"
        await round_trip(await connect(one.url))
        await round_trip(await connect(two.url))


async def test_stop_cuts_clients_and_frees_the_port() -> None:
    server = headrace.Server()
    await server.start()
    port = server.port
    client = await connect(server.url, allow_reconnect=False)
    await server.stop()
    await server.stop()
    async with headrace.Server(port=port) as again:
        await round_trip(await connect(again.url))
    await client.close()


async def test_a_client_comes_back_after_a_restart() -> None:
    back = asyncio.Event()

    async def reconnected() -> None:
        back.set()

    server = headrace.Server()
    await server.start()
    port = server.port
    client = await connect(
        server.url, reconnect_time_wait=0.01, max_reconnect_attempts=-1, reconnected_cb=reconnected
    )
    await server.stop()
    async with headrace.Server(port=port):
        await asyncio.wait_for(back.wait(), 20)
        await round_trip(client)


async def test_the_port_is_not_known_before_it_runs() -> None:
    with pytest.raises(RuntimeError, match="start"):
        _ = headrace.Server().url


async def test_it_starts_only_once() -> None:
    async with headrace.Server() as server:
        with pytest.raises(RuntimeError, match="once"):
            await server.start()


def test_unknown_options_are_named() -> None:
    with pytest.raises(OptionsError, match="'prot'"):
        headrace.Server(prot=1)


def test_contradictions_are_found_before_it_starts() -> None:
    with pytest.raises(OptionsError, match="allow_insecure"):
        headrace.Server(host="0.0.0.0")


async def test_a_port_in_use_leaves_nothing_running() -> None:
    async with headrace.Server() as server:
        second = headrace.Server(port=server.port, http_port=-1)
        with pytest.raises(OptionsError, match=str(server.port)):
            await second.start()
        await round_trip(await connect(server.url))


async def test_a_server_listens_on_ipv6() -> None:
    async with headrace.Server(host="::1") as server:
        assert server.url == f"nats://[::1]:{server.port}"
        await round_trip(await connect(server.url))


async def test_user_and_password() -> None:
    async with headrace.Server(user="ada", password="secret") as server:
        await round_trip(await connect(server.url, user="ada", password="secret"))
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization violation"):
            await connect(server.url, user="ada", password="wrong", allow_reconnect=False)


async def test_only_the_right_token_connects() -> None:
    async with headrace.Server(token="secret") as server:
        await round_trip(await connect(server.url, token="secret"))
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization violation"):
            await connect(server.url, allow_reconnect=False)


def client_context(made: certificates.Certificates, *, certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=made.ca)
    if certificate:
        context.load_cert_chain(made.client_cert, made.client_key)
    return context


async def test_a_server_serves_tls(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    async with headrace.Server(tls_cert=made.cert, tls_key=made.key) as server:
        assert server.url.startswith("tls://")
        await round_trip(await connect(server.url, tls=client_context(made)))


async def test_a_server_serves_tls_handshake_first(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    async with headrace.Server(tls_cert=made.cert, tls_key=made.key, tls_handshake_first=True) as server:
        client = await connect(server.url, tls=client_context(made), tls_handshake_first=True)
        await round_trip(client)


async def test_required_client_certificates_are_checked(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    settings = {"tls_cert": made.cert, "tls_key": made.key, "tls_ca": made.ca, "tls_verify": True}
    async with headrace.Server(**settings) as server:
        await round_trip(await connect(server.url, tls=client_context(made, certificate=True)))
        with pytest.raises((nats.errors.Error, OSError)):
            await connect(server.url, tls=client_context(made), allow_reconnect=False, connect_timeout=60)


async def test_a_server_that_silently_waits_for_tls_lets_go(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    async with headrace.Server(tls_cert=made.cert, tls_key=made.key, tls_timeout_s=0.05) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await reader.readline()).startswith(b"INFO ")
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_stats_count_connections_and_messages() -> None:
    async with headrace.Server() as server:
        client = await connect(server.url)
        await client.subscribe("a")
        await client.publish("a", b"12345")
        await client.flush()
        vitals = server.stats()
        assert (vitals.connections, vitals.total_connections, vitals.subscriptions) == (1, 1, 1)
        assert (vitals.in_msgs, vitals.in_bytes, vitals.out_msgs, vitals.out_bytes) == (1, 5, 1, 5)
        await client.close()
        await round_trip(await connect(server.url))
        assert server.stats().total_connections == 2
        assert server.stats().in_msgs == 2


async def test_time_passes_on_request_under_an_unmodified_client() -> None:
    async with headrace.Server(clock="virtual") as server:
        client = await connect(server.url)
        before = server.now_ns()
        happened: list[int] = []
        server.timers.after(3600 * 10**9, lambda: happened.append(server.now_ns() - before))
        server.timers.after(7200 * 10**9, lambda: happened.append(server.now_ns() - before))
        await server.advance("59m")
        assert happened == []
        await server.advance("23h1m")
        assert happened == [3600 * 10**9, 7200 * 10**9]
        assert server.now_ns() - before == 86400 * 10**9
        await round_trip(client)


async def test_messages_grow_old_on_request(tmp_path: Path) -> None:
    async with headrace.Server(tmp_path, clock="virtual") as server:
        client = await connect(server.url)
        jetstream = client.jetstream()
        await jetstream.add_stream(name="S", subjects=["s"], max_age=3600)
        await jetstream.publish("s", b"1")
        await server.advance("59m")
        assert (await jetstream.stream_info("S")).state.messages == 1
        await server.advance("24h")
        assert (await jetstream.stream_info("S")).state.messages == 0
        await client.close()


async def test_a_store_that_cannot_write_shows_and_does_not_hinder_the_end(tmp_path: Path) -> None:
    async with headrace.Server(tmp_path) as server:
        health = make_pages(server, ServerHistory(server))["/healthz"]
        assert health({}).status == 200
        assert server.jetstream is not None
        server.jetstream.store.fail(OSError(5, "Input/output error"))
        assert health({}).status == 503
        assert b"Input/output error" in health({}).body


async def test_real_time_cannot_be_advanced() -> None:
    async with headrace.Server() as server:
        with pytest.raises(RuntimeError, match="virtual"):
            await server.advance("1s")


async def test_lame_duck_tells_clients_and_ends() -> None:
    told = asyncio.Event()

    async def hear(*_: object) -> None:
        told.set()

    async with headrace.Server(lame_duck_grace_s=0.01, lame_duck_duration_s=0.02) as server:
        client = await connect(server.url, allow_reconnect=False, lame_duck_mode_cb=hear)
        server.begin_lame_duck()
        server.begin_lame_duck()
        await asyncio.wait_for(told.wait(), 30)
        await asyncio.wait_for(server.wait_stopped(), 30)
        await client.close()
