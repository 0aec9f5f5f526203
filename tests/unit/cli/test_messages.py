"""`pub`, `sub` and `req` against a running broker."""

import asyncio
import subprocess
import sys

import nats
import pytest

from headrace.cli import main
from headrace.client import connect
from headrace.testing import HostedServer
from support.processes import TIMEOUT_S


def test_a_subscriber_shows_what_is_published(headrace_server: HostedServer) -> None:
    command = [sys.executable, "-m", "headrace", "sub", "a.*", "--count", "2", "-s", headrace_server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as subscriber:
        assert subscriber.stderr is not None
        assert subscriber.stdout is not None
        assert "Subscribed to a.*" in subscriber.stderr.readline()
        assert main(["pub", "a.b", "hello", "-H", "From: me", "--count", "2", "-s", headrace_server.url]) == 0
        shown = subscriber.stdout.read()
        assert subscriber.wait(TIMEOUT_S) == 0
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
