"""`pub`, `sub` and `req` against a running broker."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest

from headrace.cli import main
from headrace.client import connect
from headrace.testing import HostedServer
from support.processes import TIMEOUT_S


@contextlib.asynccontextmanager
async def begin(*words: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a command; end it when the test ends, also if it failed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace", *words, "-s", url), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_a_subscriber_shows_what_is_published(headrace_server: HostedServer) -> None:
    command = [sys.executable, "-m", "headrace", "sub", "a.*", "--count", "2", "-s", headrace_server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as subscriber:
        try:
            assert subscriber.stderr is not None
            assert "Subscribed to a.*" in subscriber.stderr.readline()
            words = ["pub", "a.b", "hello", "-H", "From: me", "--count", "2", "-s", headrace_server.url]
            assert main(words) == 0
            shown, _ = subscriber.communicate(timeout=TIMEOUT_S)
            assert subscriber.returncode == 0
        finally:
            subscriber.kill()
    assert shown == "[a.b]\nFrom: me\nhello\n" * 2


async def test_a_request_shows_the_answer(headrace_url: str) -> None:
    client = await connect(headrace_url)

    async def answer(message: nats.aio.msg.Msg) -> None:
        await message.respond(message.data.upper())

    await client.subscribe("shout", cb=answer)
    await client.flush()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace", "req", "shout", "water", "-s", headrace_url, stdout=subprocess.PIPE
    )
    shown, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert shown.decode().endswith("\nWATER\n")
    await client.close()


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["req", "nobody", "x"], 6, "no responders"),
        (["pub", "a", "x", "-H", "wrong"], 2, "invalid header"),
    ],
)
def test_errors_are_reported(
    arguments: list[str], code: int, word: str, headrace_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "-s", headrace_url]) == code
    shown = capfd.readouterr().err
    assert word in shown
    assert "Traceback" not in shown


def test_the_error_says_that_there_is_no_server(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["pub", "a", "x", "-s", "nats://127.0.0.1:1"]) == 5
    shown = capfd.readouterr().err
    assert "headrace: " in shown
    assert "Traceback" not in shown


async def test_a_line_is_published_while_the_next_one_is_awaited(headrace_url: str) -> None:
    client = await connect(headrace_url)
    messages = await client.subscribe("lines")
    await client.flush()
    async with begin("pub", "lines", "--lines", url=headrace_url) as process:
        assert process.stdin is not None
        for line in (b"one", b"two"):
            process.stdin.write(line + b"\r\n")
            assert (await messages.next_msg(TIMEOUT_S)).data == line
        process.stdin.write(b"three")
        process.stdin.close()
        assert (await messages.next_msg(TIMEOUT_S)).data == b"three"
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 0
    await client.close()


@pytest.mark.parametrize("arguments", [("m", "--count", "1000000000"), ("--lines",)])
async def test_one_interrupt_ends_publishing(arguments: tuple[str, ...], headrace_url: str) -> None:
    client = await connect(headrace_url)
    messages = await client.subscribe("many")
    await client.flush()
    async with begin("pub", "many", *arguments, url=headrace_url) as process:
        assert process.stdin is not None
        process.stdin.write(b"a line\n")
        await messages.next_msg(TIMEOUT_S)
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 130
        assert process.stderr is not None
        assert await process.stderr.read() == b""
    await client.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(("count", "size"), [(1_000_000_000, 1), (10_000, 100_000)])
async def test_publishing_takes_little_memory(count: int, size: int, headrace_url: str) -> None:
    client = await connect(headrace_url)
    messages = await client.subscribe("many", pending_bytes_limit=-1)
    await client.flush()
    async with begin("pub", "many", "x" * size, "--count", str(count), url=headrace_url) as process:
        for _ in range(3_000):
            await messages.next_msg(TIMEOUT_S)
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), TIMEOUT_S)
    await client.close()
    (peak_kib,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    assert peak_kib < 150_000
