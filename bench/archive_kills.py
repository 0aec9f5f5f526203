"""Kills and suspends the leader of two servers with `ack: remote` again and again, under load.

`python bench/archive_kills.py --rounds 50 --target file|seaweed|nats`. Each takeover must keep everything that was
confirmed, and a leader that is woken must not confirm anything. Prints the takeover times; exits with 1 if anything is lost.
`--stored 10000000` first stores as many messages of 128 bytes on 1,000 subjects, so that stores are large.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from load import Connection, publication

from claims.object_stores import Weed
from conformance.client import Client
from support.cluster import Cluster
from support.takeovers import FOLLOWING, Load, Node, Nodes, find_lost, set_up

#: Messages in flight while the first ones are stored.
FILL_CHUNK = 20_000


@contextlib.contextmanager
def open_url(kind: str, folder: Path) -> Iterator[str]:
    """Start what the archive needs, and yield its URL."""
    if kind == "file":
        yield f"file://{folder / 'archive'}"
    elif kind == "seaweed":
        store = Weed()
        os.environ["AWS_ACCESS_KEY_ID"] = store.KEYS["access_key_id"]
        os.environ["AWS_SECRET_ACCESS_KEY"] = store.KEYS["secret_access_key"]
        os.environ["AWS_ENDPOINT_URL"] = store.endpoint
        try:
            yield f"s3://kills-{time.time_ns()}/prod"
        finally:
            store.close()
    else:
        with Cluster(folder / "cluster") as cluster:
            hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
            yield f"nats://{hosts}/KILLS"


def fill(leader: Node, standby: Node, messages: int) -> None:
    """Store messages before the first round, and wait until the standby has them."""
    with Connection(leader.serving.port) as connection:
        connection.stream("BACKLOG", subjects=["backlog.*"])
        connection.subscribe(b"ack")
        for start in range(0, messages, FILL_CHUNK):
            count = min(FILL_CHUNK, messages - start)
            parts = (publication(b"backlog.%d" % (n % 1000), b"x" * 128, b"ack") for n in range(count))
            connection.socket.sendall(b"".join(parts))
            connection.skip_acks(count)
    while standby.health().get("lag_seconds", 1.0) > 0.5:
        time.sleep(0.2)
    print(f"{messages:,} messages are stored and archived", flush=True)


def end_leader(leader: Node, nodes: Nodes, load: Load, is_stop: bool) -> tuple[Node, float]:
    """Kill or suspend the leader; return the next one, and how long it took."""
    started = time.monotonic()
    if not is_stop:
        leader.kill()
        found = nodes.wait_for_leader(leader)
        return found, time.monotonic() - started
    leader.serving.signal(signal.SIGSTOP)
    found = nodes.wait_for_leader(leader)
    seconds = time.monotonic() - started
    confirmed = len(load.stored)
    leader.serving.signal(signal.SIGCONT)
    assert leader.serving.ended() == 1, leader.log
    load.join()
    assert len(load.stored) == confirmed, "the woken leader has acknowledged"
    return found, seconds


def run(
    folder: Path, url: str, rounds: int, takeover_after: str, stored: int
) -> tuple[list[float], int, list[str]]:
    """Return the takeover times, the number of confirmed messages, and what was lost."""
    seconds, confirmed, lost = [], 0, []
    with Nodes(folder, url, 2, takeover_after) as nodes:
        leader = nodes.start_all()
        with Client(leader.serving.port) as client:
            set_up(client)
        if stored:
            try:
                fill(leader, nodes.all[1], stored)
            except (AssertionError, OSError) as error:
                raise RuntimeError("\n".join(each.log for each in nodes.all)) from error
        for number in range(rounds):
            load = Load(leader.serving.port, number)
            load.start()
            load.wait_for(random.randrange(300, 1500))
            is_stop = number % 3 == 2
            former, (leader, took) = leader, end_leader(leader, nodes, load, is_stop)
            load.join()
            seconds.append(took)
            confirmed += len(load.stored) + len(load.acked)
            found = find_lost(leader.serving.port, [load])
            lost += found
            what = "stop" if is_stop else "kill"
            print(
                f"round {number + 1}: {what}, {took:.2f} s, {len(load.stored)} stored, {len(found)} lost",
                flush=True,
            )
            former.start()
            former.wait_for(FOLLOWING)
    return seconds, confirmed, lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--target", choices=("file", "seaweed", "nats"), default="file")
    parser.add_argument("--takeover-after", default="3s")
    parser.add_argument("--stored", type=int, default=0, help="messages to store before the first round")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, open_url(arguments.target, Path(name)) as url:
        seconds, confirmed, lost = run(
            Path(name), url, arguments.rounds, arguments.takeover_after, arguments.stored
        )
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    print(
        f"{arguments.rounds} takeovers, {confirmed} confirmed, {len(lost)} lost; takeover p50 "
        f"{statistics.median(seconds):.2f} s, p95 {p95:.2f} s, max {ordered[-1]:.2f} s"
    )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
