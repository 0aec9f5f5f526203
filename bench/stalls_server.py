"""Operations of `stalls.py` that concern the server rather than one stream: backups, connections, pages, configuration."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from load import CONNECT, Connection, publication, repeat
from stalls_data import MILLION, TIMEOUT_S, Client, fill, info, keys, row, scaled, wait_until

RULES = 1_000
USERS = 5_000


def port_of(c: Connection) -> int:
    port: int = c.socket.getpeername()[1]
    return port


# Storage


@row("restore")
def restore(c: Client, scale: float) -> Iterator[None]:
    """Restore of a backup of 1 M messages."""
    count = scaled(MILLION, scale)
    c.stream("BIG")
    fill(c, keys(1000, count // 1000))
    receiver, chunks = Connection(port_of(c)), []
    receiver.subscribe(b"backup.data")
    config = c.api("STREAM.SNAPSHOT.BIG", {"deliver_subject": "backup.data"}, timeout_s=TIMEOUT_S)["config"]
    while not chunks or chunks[-1]:
        _, reply, _, payload = receiver.message()
        chunks.append(payload)
        if reply:
            receiver.socket.sendall(b"PUB %s 0\r\n\r\n" % reply)
    receiver.close()
    c.api("STREAM.DELETE.BIG", timeout_s=TIMEOUT_S)
    yield
    subject = c.api("STREAM.RESTORE.BIG", {"config": config}, timeout_s=TIMEOUT_S)["deliver_subject"]
    for chunk in chunks:
        c.request(subject.encode(), chunk)
    assert info(c)["messages"] == count


@row("checkpoint")
def checkpoint(c: Client, scale: float) -> Iterator[None]:
    """Writes to a stream with 1 M messages on 500,000 subjects, enough for a checkpoint."""
    count = scaled(500_000, scale)
    c.stream("BIG")
    fill(c, keys(count, 2))
    c.stream("MORE", max_msgs=1000)
    yield
    fill(c, [b"BIG.k.%d" % number for number in range(100)] * 10)
    fill(c, [b"MORE.x"] * scaled(10_000, scale), size=32 * 1024)


@row("pins", peer=False)
def pins(c: Client, scale: float) -> Iterator[None]:
    """1,000 snapshot pins of one stream, then their release."""
    c.stream("BIG")
    fill(c, keys(1000, scaled(100_000, scale) // 1000))
    yield
    names = [c.api("STREAM.PIN.BIG", {"lease": 600})["pin"] for _ in range(int(1_000 * scale))]
    for name in names:
        c.api("STREAM.UNPIN.BIG", {"pin": name})


# Many rules


def make_mappings(scale: float) -> str:
    rules = "\n".join(f'"MAP.{n}.*.*": "BIG.{n}.{{{{wildcard(2)}}}}.$1"' for n in range(int(RULES * scale)))
    return f"mappings {{\n{rules}\n}}\n"


@row("mappings", make_mappings)
def mappings(c: Client, scale: float) -> Iterator[None]:
    """Publishes to 20,000 subjects that 1,000 mappings apply to, into a stream that republishes."""
    c.stream("BIG", republish={"src": "BIG.>", "dest": "again.>"})
    count = scaled(20_000, scale)
    yield
    fill(c, [b"MAP.%d.a.%d" % (n % int(RULES * scale), n) for n in range(count)])


@row("transforms")
def transforms(c: Client, scale: float) -> Iterator[None]:
    """A source with 1,000 subject transforms copies 20,000 subjects."""
    count, rules = scaled(20_000, scale), int(RULES * scale)
    c.stream("BIG")
    fill(c, [b"BIG.%d.%d" % (n % rules, n) for n in range(count)])
    moved = [{"src": f"BIG.{n}.*", "dest": f"COPY.{n}.$1"} for n in range(rules)]
    yield
    c.api("STREAM.CREATE.COPY", {"name": "COPY", "sources": [{"name": "BIG", "subject_transforms": moved}]})
    wait_until(lambda: info(c, "COPY")["messages"] == count)


def make_accounts(scale: float) -> str:
    return """
    accounts {
      APP { jetstream: enabled, users: [{user: app, password: x}], imports: [{service: {account: SVC, subject: "work.>"}}] }
      SVC { users: [{user: svc, password: x}], exports: [{service: "work.>", response: stream}] }
    }
    no_auth_user: app
    """


@row("imports", make_accounts)
def imports(c: Client, scale: float) -> Iterator[None]:
    """100,000 requests through a service import that nobody answers, on 50,000 subjects."""
    service = Connection(port_of(c), CONNECT.replace(b"{", b'{"user":"svc","pass":"x",', 1))
    service.subscribe(b"work.>")
    count = scaled(100_000, scale)
    yield
    for start in range(0, count, 1000):
        numbers = range(start, start + 1000)
        c.socket.sendall(b"".join(b"PUB work.%d in.%d 2\r\nhi\r\n" % (n // 2, n) for n in numbers))
        for _ in numbers:
            service.message()
    service.close()


# Connections


@row("subscriptions")
def subscriptions(c: Client, scale: float) -> Iterator[None]:
    """50,000 subscriptions with 30 tokens each by one client, which then disconnects."""
    deep = b".".join(b"t%d" % n for n in range(28))
    subs = [b"SUB %s.%d.* %d\r\n" % (deep, n, n) for n in range(int(25_000 * scale))]
    subs += [b"SUB %s.%d.x %d\r\n" % (deep, n, n) for n in range(len(subs), 2 * len(subs))]
    yield
    with Connection(port_of(c)) as other:
        other.socket.sendall(b"".join(subs) + b"PING\r\n")
        while other.line() != b"PONG":
            pass
    time.sleep(1)


@row("disconnects")
def disconnects(c: Client, scale: float) -> Iterator[None]:
    """2,000 clients with 10 subscriptions each that disconnect at once."""
    subs = b"".join(b"SUB away.%d.> %d\r\n" % (n, n) for n in range(10))
    clients = [Connection(port_of(c)) for _ in range(int(2_000 * scale))]
    for each in clients:
        each.socket.sendall(subs + b"PING\r\n")
    for each in clients:
        while each.line() != b"PONG":
            pass
    yield
    for each in clients:
        each.socket.shutdown(socket.SHUT_RDWR)
    time.sleep(2)


@row("connects")
def connects(c: Client, scale: float) -> Iterator[None]:
    """2,000 clients that connect at once."""
    sockets = [socket.socket() for _ in range(int(2_000 * scale))]
    yield
    for each in sockets:
        each.setblocking(False)
        each.connect_ex(("127.0.0.1", port_of(c)))
    for each in sockets:
        each.setblocking(True)
        each.sendall(b"CONNECT %s\r\nPING\r\n" % CONNECT)
    for each in sockets:
        each.recv(1)
    time.sleep(1)
    for each in sockets:
        each.close()


@row("idle_consumers", peer=False)
def idle_consumers(c: Client, scale: float) -> Iterator[None]:
    """4,000 consumers whose inactive_threshold ends in the same second."""
    c.stream("BIG")
    fill(c, keys(1000, 1))
    begun = time.monotonic()
    for number in range(int(4_000 * scale)):
        left_s = max(30 - (time.monotonic() - begun), 1)
        c.consumer("BIG", f"c{number}", ack_policy="explicit", inactive_threshold=int(left_s * 1e9))
    time.sleep(max(29 - (time.monotonic() - begun), 0))
    yield
    wait_until(lambda: not info(c)["consumer_count"])


@row("api_flood")
def api_flood(c: Client, scale: float) -> Iterator[None]:
    """20,000 STREAM.INFO requests, sent without waiting."""
    c.stream("BIG")
    count = scaled(20_000, scale)
    reader = threading.Thread(target=lambda: [c.message() for _ in range(count)])
    yield
    reader.start()
    for chunk in repeat(publication(b"$JS.API.STREAM.INFO.BIG", b"", c.inbox + b".f") * 1000, count // 1000):
        c.socket.sendall(chunk)
    reader.join()


# Configuration, passwords and pages


def make_users(scale: float, allowed: str = "app.>") -> str:
    users = "\n".join(
        f'{{ user: u{n}, password: p{n}, permissions: {{ publish: ["{allowed}", "u{n}.>"],'
        f' subscribe: ["_INBOX.>", "u{n}.>"] }} }}'
        for n in range(int(USERS * scale))
    )
    return f"authorization {{ users: [\n{{ user: main, password: x }}\n{users}\n] }}\nno_auth_user: main\n"


@row("reload", make_users)
def reload(c: Client, scale: float) -> Iterator[None]:
    """Reload of a configuration with 5,000 users, 500 of them connected."""
    clients = [
        Connection(port_of(c), CONNECT.replace(b"{", b'{"user":"u%d","pass":"p%d",' % (n, n), 1), b"_INBOX.x")
        for n in range(int(500 * scale))
    ]
    yield
    c.reload(make_users(scale, "other.>"))
    wait_until(lambda: b"Reloaded" in c.server.read_log())
    for each in clients:
        each.close()


def make_slow_password(scale: float) -> str:
    secret = "$2a$11$cs1MmqHPg6XpV0ZYDv83.uQGkPQXzciqIP/FtGug07y32xokeoeMm"
    users = f'{{ user: main, password: x }}, {{ user: known, password: "{secret}" }}'
    return f"authorization {{ timeout: 30, users: [{users}] }}\nno_auth_user: main\n"


def be_refused(port: int, user: bytes) -> float:
    """Connect with a wrong password; return how long the server took to refuse it."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as stranger:
        begun = time.perf_counter()
        stranger.sendall(b'CONNECT {"user":"%s","pass":"wrong"}\r\nPING\r\n' % user)
        while stranger.recv(65_536):
            pass
        return time.perf_counter() - begun


@row("passwords", make_slow_password)
def passwords(c: Client, scale: float) -> Iterator[None]:
    """60 strangers with wrong passwords, which are checked with bcrypt."""
    port, users = port_of(c), (b"known", b"unknown")
    yield
    with ThreadPoolExecutor(60) as pool:
        list(pool.map(be_refused, [port] * int(60 * scale), users * int(30 * scale)))
    for user in users:
        waits = [be_refused(port, user) for _ in range(20)]
        print(f"    refusing the user {user.decode()!r} takes {statistics.median(waits) * 1e3:.1f} ms")


@row("pages")
def pages(c: Client, scale: float) -> Iterator[None]:
    """The monitor's pages with 10,000 streams, 4,000 consumers and 1,000 connections."""
    for number in range(int(10_000 * scale)):
        c.stream(f"S{number}", storage="memory")
    for number in range(int(4_000 * scale)):
        c.consumer(f"S{number}", "c", ack_policy="explicit", mem_storage=True)
    clients = [Connection(port_of(c)) for _ in range(int(1_000 * scale))]
    for each in clients:
        each.socket.sendall(b"".join(b"SUB page.%d.> %d\r\n" % (n, n) for n in range(20)))
    yield
    for path in (
        "/varz",
        "/jsz?streams=1&consumers=1&config=1",
        "/connz?subs=1",
        "/subsz?subs=1",
        "/healthz",
    ):
        c.get_page(path)
    if "nats-server" not in c.server.words[0]:
        c.get_page("/metrics")
        c.get_page("/headrace/overview")
    for each in clients:
        each.close()
