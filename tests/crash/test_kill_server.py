"""kill -9 of a real server under API load: what it acknowledged is there after the restart, byte by byte."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time

import pytest

from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.servers import OURS, Server

ROUNDS = 6


class Publisher(threading.Thread):
    """Publishes as fast as possible and records what was acknowledged, until the server is killed."""

    def __init__(self, port: int, life: int) -> None:
        super().__init__()
        self.port, self.life = port, life
        self.acked: dict[int, bytes] = {}
        self.batches: dict[int, int] = {}

    def run(self) -> None:
        try:
            with Client(self.port) as client:
                for turn in range(100_000):
                    self._plain(client, turn)
                    self._batch(client, turn)
        except (OSError, EOFError, TimeoutError):
            return  # the server was killed

    def _plain(self, client: Client, turn: int) -> None:
        payloads = [b"%d.%d.%d" % (self.life, turn, i) + b"x" * random.randrange(400) for i in range(50)]
        asked = {client.ask("s.plain", payload): payload for payload in payloads}
        for _ in asked:
            answer = client.next(client._answers)
            self.acked[answer.json["seq"]] = asked[answer.subject]

    def _batch(self, client: Client, turn: int) -> None:
        size = random.randrange(2, 30)
        for position in range(1, size + 1):
            headers = {"Nats-Batch-Id": f"{self.life}-{turn}", "Nats-Batch-Sequence": str(position)}
            if position < size:
                client.publish("s.batch", b"member", headers=headers)
        headers["Nats-Batch-Commit"] = "1"
        answer = client.request("s.batch", b"last", headers).json
        self.batches[answer["seq"]] = answer["count"]


def check(server: Server, acked: dict[int, bytes], batches: dict[int, int]) -> None:
    with Client(server.port) as client:
        for seq, payload in acked.items():
            assert client.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq).payload == payload
        for seq, count in batches.items():
            for member in range(seq - count + 1, seq + 1):
                found = client.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % member)
                assert found.payload == (b"last" if member == seq else b"member")
        _check_whole_batches(client)


def _check_whole_batches(client: Client) -> None:
    """Check that every batch, even if not acknowledged, is stored completely or not at all."""
    state = client.api("STREAM.INFO.S")["state"]
    members = 0
    for seq in range(max(state["first_seq"], state["last_seq"] - 300), state["last_seq"] + 1):
        found = client.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq)
        if found.headers.get("Nats-Subject") == "s.batch":
            members = 0 if found.payload == b"last" else members + 1
        else:
            assert members == 0, f"a part of a batch before {seq}"
    assert members == 0, "a part of a batch at the end"


@pytest.mark.slow
def test_nothing_acknowledged_is_lost() -> None:
    acked: dict[int, bytes] = {}
    batches: dict[int, int] = {}
    with Server(OURS) as server:
        with Client(server.port) as client:
            config = {"name": "S", "subjects": ["s.>"], "allow_direct": True, "allow_atomic": True}
            assert "error" not in client.api("STREAM.CREATE.S", config)
        for life in range(ROUNDS):
            publishers = [Publisher(server.port, life * 10 + i) for i in range(2)]
            for publisher in publishers:
                publisher.start()
            eventually(lambda publishers=publishers: any(publisher.acked for publisher in publishers))
            time.sleep(random.uniform(0, 0.5))
            server.kill()
            for publisher in publishers:
                publisher.join()
                acked |= publisher.acked
                batches |= publisher.batches
            server.start()
        check(server, acked, batches)
    assert len(acked) > 100


def test_a_second_server_on_the_same_folder_is_refused() -> None:
    with Server(OURS) as server:
        command = [sys.executable, "-m", "headrace", "serve", "-p", "-1", "-js", "-sd", str(server.store_dir)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        assert second.returncode == 1
        assert "in use by another process" in second.stderr
        assert "Traceback" not in second.stderr
