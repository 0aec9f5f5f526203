"""What waiting pull requests get when the server stops, so that their clients do not wait for nothing."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import EOF, Client, Message, parse_message
from conformance.servers import Server, Setup

Launch = Callable[[Setup], Server]

SECOND_NS = 1_000_000_000


def _add_consumer(client: Client) -> None:
    client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    config = {"durable_name": "C", "ack_policy": "explicit"}
    info = client.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
    assert "error" not in info


def _pull(client: Client, prefix: str = "$JS.API", **request: Any) -> str:
    body = {"expires": 600 * SECOND_NS, **request}
    return client.ask(f"{prefix}.CONSUMER.MSG.NEXT.S.C", json.dumps(body).encode())


def _read_to_end(client: Client) -> list[Message]:
    """The messages that come until the server closes the connection."""
    messages = []
    while (frame := client.frame()) != EOF:
        if frame.startswith((b"MSG ", b"HMSG ")):
            messages.append(parse_message(frame))
    return messages


def _ends(messages: list[Message]) -> dict[str, tuple[str, str, str]]:
    return {
        message.subject: (
            message.status,
            message.headers["Nats-Pending-Messages"],
            message.headers["Nats-Pending-Bytes"],
        )
        for message in messages
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_waiting_pulls_end_with_what_is_pending(fresh_server: Server, number: int) -> None:
    with Client(fresh_server.port) as client:
        _add_consumer(client)
        client.store("s.1", b"x")
        first = _pull(client, batch=7, max_bytes=100_000)
        assert client.next(client._answers).payload == b"x"
        second = _pull(client, batch=3)
        client.flush()
        fresh_server.signal(number)
        ends = _ends(_read_to_end(client))
    assert ends[second] == ("409 Server Shutdown", "3", "0")
    status, messages, size = ends[first]
    assert (status, messages) == ("409 Server Shutdown", "6")
    assert 0 < int(size) < 100_000


ACCOUNTS = """
accounts {
  JS { jetstream: enabled, users: [{user: js, password: p}]
    exports: [{service: "$JS.API.CONSUMER.MSG.NEXT.>", response_type: stream}] }
  OTHER { users: [{user: other, password: p}]
    imports: [{service: {account: JS, subject: "$JS.API.CONSUMER.MSG.NEXT.>"}, to: "far.CONSUMER.MSG.NEXT.>"}] }
}
"""


def test_pulls_of_other_accounts_end_too(launch: Launch) -> None:
    server = launch(Setup(config=ACCOUNTS, accounts=("JS",)))
    own = {"user": "js", "pass": "p"}
    with Client(server.port, **own) as owner, Client(server.port, user="other", **{"pass": "p"}) as client:
        _add_consumer(owner)
        reply = _pull(client, prefix="far", batch=2)
        client.flush()
        server.signal(signal.SIGTERM)
        ends = _ends(_read_to_end(client))
    assert ends[reply] == ("409 Server Shutdown", "2", "0")


def _leave(launch: Launch, grace: str, duration: str = "40s") -> Server:
    settings = {"lame_duck_duration": f'"{duration}"', "lame_duck_grace_period": f'"{grace}"'}
    return launch(Setup(settings=settings))


@pytest.mark.ours_only("In lame duck mode streams work until clients are closed")
def test_in_lame_duck_mode_streams_work_for_a_while(launch: Launch) -> None:
    server = _leave(launch, "300s", "400s")
    with Client(server.port) as client:
        _add_consumer(client)
        _pull(client, batch=4)
        server.signal(signal.SIGUSR2)
        while not (client.infos and client.infos[-1].get("ldm")):
            client._step(60)
        client.publish("s.1", b"x")
        assert client.next(client._answers).payload == b"x"


@pytest.mark.ours_only("In lame duck mode streams work until clients are closed")
def test_in_lame_duck_mode_pulls_end_before_clients_are_closed(launch: Launch) -> None:
    server = _leave(launch, "10ms")
    with Client(server.port) as client:
        _add_consumer(client)
        reply = _pull(client, batch=4)
        client.flush()
        server.signal(signal.SIGUSR2)
        ends = _ends(_read_to_end(client))
    assert ends == {reply: ("409 Server Shutdown", "4", "0")}


def test_lame_duck_mode_without_clients_stops_at_once(launch: Launch) -> None:
    server = _leave(launch, "300s", "400s")
    server.signal(signal.SIGUSR2)
    assert server.wait(120) == 0


@pytest.mark.ours_only("Lame duck mode ends when the last client has left")
def test_lame_duck_mode_ends_when_the_last_client_has_left(launch: Launch) -> None:
    server = _leave(launch, "300s", "400s")
    with Client(server.port) as client:
        client.flush()
        server.signal(signal.SIGUSR2)
        while not (client.infos and client.infos[-1].get("ldm")):
            client._step(60)
    assert server.wait(120) == 0
