"""The pytest plugin: a server for tests with and without an event loop."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import nats
import pytest

from headrace.durations import Duration
from headrace.testing import HostedServer, hosted_server


def test_a_test_without_an_event_loop(headrace_server: HostedServer) -> None:
    async def publish() -> None:
        client = await nats.connect(headrace_server.url)
        messages = await client.subscribe("a")
        await client.publish("a", b"1")
        await messages.next_msg(60)  # not `flush`: nats-py may send its PING before the message
        await client.close()

    asyncio.run(publish())
    assert headrace_server.server.stats().in_msgs == 1


async def test_a_test_in_an_event_loop(headrace_url: str) -> None:
    client = await nats.connect(headrace_url)
    messages = await client.subscribe("a")
    await client.publish("a", b"1")
    assert (await messages.next_msg(60)).data == b"1"
    await client.close()


@pytest.mark.headrace(clock="virtual", token="t")
def test_options_and_virtual_time_by_marker(headrace_server: HostedServer) -> None:
    before = headrace_server.server.now_ns()
    headrace_server.advance("24h")
    assert headrace_server.server.now_ns() - before == 86400 * 10**9
    assert headrace_server.server.options.token == "t"


@pytest.mark.headrace(clock="virtual")
def test_time_passes_however_long_it_takes(
    headrace_server: HostedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day with many timers takes a slow machine longer than other calls may take."""
    advance, released = headrace_server.server.advance, threading.Event()

    async def advance_slowly(duration: Duration) -> None:
        await asyncio.to_thread(released.wait)
        await advance(duration)

    monkeypatch.setattr(headrace_server.server, "advance", advance_slowly)
    monkeypatch.setattr(hosted_server, "CALL_TIMEOUT_S", 0.01)
    threading.Timer(0.5, released.set).start()
    before = headrace_server.server.now_ns()
    headrace_server.advance("1h")
    assert headrace_server.server.now_ns() - before == 3600 * 10**9


def test_the_factory_starts_several_servers(headrace_factory: Callable[..., HostedServer]) -> None:
    one, two = headrace_factory(), headrace_factory(server_name="two")
    assert one.port != two.port
    assert two.server.server_name == "two"


def test_a_server_that_cannot_start_leaves_no_thread(headrace_server: HostedServer) -> None:
    hosted = HostedServer(port=headrace_server.port)
    with pytest.raises(Exception, match=str(headrace_server.port)):
        hosted.start()
    with pytest.raises(RuntimeError, match="is not running"):
        _ = hosted.url


def test_a_restarted_server_has_its_port_and_its_streams(headrace_server: HostedServer) -> None:
    async def publish() -> None:
        client = await nats.connect(headrace_server.url)
        js = client.jetstream(timeout=60)
        await js.add_stream(name="S", subjects=["s"])
        await js.publish("s", b"1")
        await client.close()

    async def read() -> bytes | None:
        client = await nats.connect(headrace_server.url)
        found = await client.jetstream(timeout=60).get_msg("S", 1)
        await client.close()
        return found.data

    asyncio.run(publish())
    port = headrace_server.port
    headrace_server.restart()
    assert headrace_server.port == port
    assert asyncio.run(read()) == b"1"
    with pytest.raises(RuntimeError, match="is running"):
        headrace_server.start()


@pytest.mark.headrace(clock="virtual")
def test_a_virtual_clock_does_not_go_back(headrace_server: HostedServer) -> None:
    with pytest.raises(RuntimeError, match="virtual clock"):
        headrace_server.restart()


def test_the_plugin_is_light() -> None:
    code = (
        "import sys, headrace.testing; print([m for m in sys.modules if m.startswith(('headrace.', 'nats'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "headrace.server" not in done.stdout
    assert "headrace.client" not in done.stdout
    assert "nats" not in done.stdout


def test_the_plugin_is_found_by_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(headrace_url): assert headrace_url.startswith('nats://')\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
