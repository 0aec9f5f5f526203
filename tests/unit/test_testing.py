"""The pytest plugin: a server for tests with and without an event loop."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nats
import pytest

from headrace.testing import HostedServer


def test_a_test_without_an_event_loop(headrace_server: HostedServer) -> None:
    async def publish() -> None:
        client = await nats.connect(headrace_server.url)
        messages = await client.subscribe("a")
        await client.publish("a", b"1")
        await messages.next_msg(20)  # not `flush`: nats-py may send its PING before the message
        await client.close()

    asyncio.run(publish())
    assert headrace_server.server.stats().in_msgs == 1


async def test_a_test_in_an_event_loop(headrace_url: str) -> None:
    client = await nats.connect(headrace_url)
    messages = await client.subscribe("a")
    await client.publish("a", b"1")
    assert (await messages.next_msg(20)).data == b"1"
    await client.close()


@pytest.mark.headrace(clock="virtual", token="t")
def test_options_and_virtual_time_by_marker(headrace_server: HostedServer) -> None:
    before = headrace_server.server.now_ns()
    headrace_server.advance("24h")
    assert headrace_server.server.now_ns() - before == 86400 * 10**9
    assert headrace_server.server.options.token == "t"


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


def test_the_plugin_is_light() -> None:
    code = (
        "import sys, headrace.testing; print([m for m in sys.modules if m.startswith(('headrace.', 'nats'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['headrace.testing']"


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
