"""WebSocket: the handshake, frames, compression, TLS and origins; nats.js in Node and in a real browser."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.sync.client import ClientConnection, connect

from conformance.servers import Server, Setup
from conformance.test_natsjs import FOLDER, node
from support import certificates

Launch = Callable[[Setup], Server]
__all__ = ["node"]

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":0,"headers":true}\r\n'
OPEN = "websocket { listen: '127.0.0.1:-1', no_tls: true, compression: true }"
KEY = base64.b64encode(b"0123456789abcdef").decode()
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[Server]:
    with Server(kind, Setup(config=OPEN)) as running:
        yield running


def dial(server: Server, **options: Any) -> ClientConnection:
    return connect(server.websocket_url, compression=options.pop("compression", None), **options)


def read_until(client: ClientConnection, end: bytes) -> bytes:
    heard = b""
    while not heard.endswith(end):
        message = client.recv(timeout=60)
        heard += message if isinstance(message, bytes) else message.encode()
    return heard


class Raw:
    """A socket that sends HTTP and frames byte by byte."""

    def __init__(self, server: Server) -> None:
        parts = urlsplit(server.websocket_url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=60)
        self.buffer = b""

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, method: str = "GET", path: str = "/", /, **headers: str | None) -> str:
        """Send a request; return the status line of the response."""
        lines = {
            "Host": "localhost",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": KEY,
            "Sec-WebSocket-Version": "13",
        } | {name.replace("_", "-"): value for name, value in headers.items()}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
        self.socket.sendall(f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode())
        head = self.head()
        self.headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        return head.split("\r\n")[0]

    def head(self) -> str:
        while b"\r\n\r\n" not in self.buffer:
            data = self.socket.recv(65536)
            assert data, self.buffer
            self.buffer += data
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        return head.decode()

    def open(self, **headers: str | None) -> Raw:
        assert self.ask(**headers) == "HTTP/1.1 101 Switching Protocols"
        first, payload = self.frame()
        assert first == 0x82 or first == 0xC2
        self.info = json.loads(self.plain(first, payload)[5:])
        return self

    def plain(self, first: int, payload: bytes) -> bytes:
        if first & 0x40:
            return zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff")
        return payload

    def send(self, first: int, payload: bytes, *, masked: bool = True, key: bytes = b"abcd") -> None:
        size = len(payload)
        bit = 0x80 if masked else 0
        if size < 126:
            head = bytes((first, bit | size))
        elif size < 65536:
            head = struct.pack("!BBH", first, bit | 126, size)
        else:
            head = struct.pack("!BBQ", first, bit | 127, size)
        data = bytes(b ^ key[i % 4] for i, b in enumerate(payload)) if masked else payload
        self.socket.sendall(head + (key if masked else b"") + data)

    def take(self, size: int) -> bytes:
        while len(self.buffer) < size:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError(self.buffer)
            self.buffer += data
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def frame(self) -> tuple[int, bytes]:
        first, size = self.take(2)
        assert not size & 0x80, "a server does not mask"
        if size == 126:
            size = int.from_bytes(self.take(2), "big")
        elif size == 127:
            size = int.from_bytes(self.take(8), "big")
        return first, self.take(size)

    def text(self, end: bytes = b"PONG\r\n") -> bytes:
        heard = b""
        while not heard.endswith(end):
            first, payload = self.frame()
            heard += self.plain(first, payload)
        return heard

    def expect_end(self, *statuses: int) -> None:
        """Check that the server closes the connection, with one of these statuses or (nats-server) with none."""
        said: list[int] = []
        try:
            while True:
                first, payload = self.frame()
                said += [int.from_bytes(payload[:2], "big")] if first == 0x88 else []
        except (EOFError, ConnectionResetError):
            pass
        assert said in ([], *([status] for status in statuses))

    def expect_close(self) -> tuple[int, str]:
        """Return status and reason of the close frame, after which nothing arrives."""
        while True:
            first, payload = self.frame()
            if first == 0x88:
                break
        rest = self.socket.recv(65536)
        assert rest == b""
        return int.from_bytes(payload[:2], "big"), payload[2:].decode()


class TestHandshake:
    def test_a_handshake_returns_the_accept_key(self, server: Server) -> None:
        with Raw(server) as raw:
            assert raw.ask() == "HTTP/1.1 101 Switching Protocols"
            accept = {name.lower(): value for name, value in raw.headers.items()}["sec-websocket-accept"]
            assert accept == "BACScCJPNqyz+UBoqMH89VmURoA="
            assert not any("protocol" in name.lower() for name in raw.headers)

    def test_info_names_this_door(self, server: Server) -> None:
        with Raw(server) as raw:
            info = raw.open().info
            assert info["port"] == urlsplit(server.websocket_url).port
            assert "tls_required" not in info

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Upgrade": None}, 400),
            ({"Upgrade": "h2c"}, 400),
            ({"Connection": "keep-alive"}, 400),
            ({"Sec_WebSocket_Key": None}, 400),
            ({"Sec_WebSocket_Key": "short"}, 400),
            ({"Sec_WebSocket_Version": "8"}, 400),
            ({"Sec_WebSocket_Version": None}, 400),
            ({"Host": None}, 400),
        ],
    )
    def test_what_is_none(self, server: Server, headers: dict[str, str | None], status: int) -> None:
        with Raw(server) as raw:
            assert raw.ask(**headers).split()[1] == str(status)

    def test_a_handshake_must_be_a_get(self, server: Server) -> None:
        with Raw(server) as raw:
            assert raw.ask("POST").split()[1] == "405"

    @pytest.mark.parametrize(("path", "status"), [("/", 101), ("/any/path?x=1", 101), ("/mqtt", 404)])
    def test_only_known_paths_are_upgraded(self, server: Server, path: str, status: int) -> None:
        with Raw(server) as raw:
            assert raw.ask("GET", path).split()[1] == str(status)

    def test_lists_and_letters_do_not_matter(self, server: Server) -> None:
        with Raw(server) as raw:
            raw.open(Upgrade="WebSocket", Connection="keep-alive, upgrade")

    @pytest.mark.parametrize("junk", [b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n"])
    def test_no_http_at_all(self, server: Server, junk: bytes) -> None:
        with Raw(server) as raw:
            raw.socket.sendall(junk)
            data = raw.socket.recv(4096)
            assert data == b"" or b" 400 " in data.split(b"\r\n")[0]

    def test_an_endless_head_is_cut(self, server: Server) -> None:
        with Raw(server) as raw:
            try:
                raw.socket.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 3_000_000)
                while raw.socket.recv(65536):
                    pass
            except (ConnectionResetError, BrokenPipeError):
                pass


class TestFrames:
    def test_the_protocol_works_inside_frames(self, server: Server) -> None:
        with dial(server) as client:
            assert read_until(client, b"\r\n").startswith(b"INFO ")
            client.send(CONNECT + b"SUB a 1\r\nPUB a 5\r\nhello\r\nPING\r\n")
            assert read_until(client, b"PONG\r\n") == b"MSG a 1 5\r\nhello\r\nPONG\r\n"

    def test_text_frames_are_bytes_too(self, server: Server) -> None:
        with dial(server) as client:
            read_until(client, b"\r\n")
            client.send((CONNECT + b"PING\r\n").decode())
            assert read_until(client, b"PONG\r\n") == b"PONG\r\n"

    def test_operations_and_frames_are_cut_anywhere(self, server: Server) -> None:
        conversation = CONNECT + b"SUB a 1\r\nPUB a 5\r\nhello\r\nPING\r\n"
        with Raw(server).open() as raw:
            for start in range(0, len(conversation), 7):
                first = 0x02 if start == 0 else 0x00
                raw.send(first, conversation[start : start + 7])
            raw.send(0x80, b"")
            assert raw.text() == b"MSG a 1 5\r\nhello\r\nPONG\r\n"

    def test_bytes_one_by_one(self, server: Server) -> None:
        frame = (
            bytes((0x82, 0x80 | 6)) + b"abcd" + bytes(b ^ b"abcd"[i % 4] for i, b in enumerate(b"PING\r\n"))
        )
        with Raw(server).open() as raw:
            raw.send(0x82, CONNECT)
            for byte in frame:
                raw.socket.sendall(bytes((byte,)))
            assert raw.text() == b"PONG\r\n"

    @pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 300_001])
    def test_payloads_of_every_frame_size_arrive(self, server: Server, size: int) -> None:
        payload = bytes(i % 251 for i in range(size))
        with Raw(server).open() as raw:
            raw.send(0x82, CONNECT + b"SUB a 1\r\n")
            raw.send(0x82, b"PUB a %d\r\n" % size + payload + b"\r\nPING\r\n", key=b"\x01\x80\xff\x00")
            assert raw.text() == b"MSG a 1 %d\r\n" % size + payload + b"\r\nPONG\r\n"

    def test_a_ping_is_answered(self, server: Server) -> None:
        with Raw(server).open() as raw:
            raw.send(0x89, b"are you there")
            assert raw.frame() == (0x8A, b"are you there")

    def test_a_control_frame_between_fragments(self, server: Server) -> None:
        with Raw(server).open() as raw:
            raw.send(0x82, CONNECT)
            raw.send(0x02, b"PI")
            raw.send(0x89, b"x")
            raw.send(0x80, b"NG\r\n")
            assert raw.frame() == (0x8A, b"x")
            assert raw.text() == b"PONG\r\n"

    @pytest.mark.parametrize(("status", "text"), [(1000, ""), (1000, "bye"), (3000, "mine")])
    def test_a_goodbye_is_answered(self, server: Server, status: int, text: str) -> None:
        with Raw(server).open() as raw:
            raw.send(0x88, struct.pack("!H", status) + text.encode())
            assert raw.expect_close() == (status, text)

    def test_a_goodbye_without_words(self, server: Server) -> None:
        with Raw(server).open() as raw:
            raw.send(0x88, b"")
            assert raw.frame()[0] == 0x88

    @pytest.mark.parametrize(
        ("first", "payload", "masked"),
        [
            (0x82, b"PING\r\n", False),
            (0x83, b"", True),
            (0xA2, b"", True),
            (0x92, b"", True),
            (0x80, b"", True),
            (0x09, b"", True),
            (0x89, b"x" * 126, True),
            (0xC9, b"", True),
            (0x88, b"x", True),
            (0x88, struct.pack("!H", 1005), True),
            (0x88, struct.pack("!H", 999), True),
        ],
    )
    def test_invalid_frames_end_the_connection(
        self, server: Server, first: int, payload: bytes, masked: bool
    ) -> None:
        with Raw(server).open() as raw:
            raw.send(first, payload, masked=masked)
            raw.expect_end(1002)

    def test_a_compressed_frame_that_was_not_agreed_on(self, server: Server) -> None:
        with Raw(server).open() as raw:
            raw.send(0xC2, b"x")
            raw.expect_end(1002)

    def test_a_new_message_inside_another(self, server: Server) -> None:
        with Raw(server).open() as raw:
            raw.send(0x02, CONNECT)
            raw.send(0x82, b"PING\r\n")
            raw.expect_end(1002)

    def test_an_impossible_frame_length_ends_the_connection(self, server: Server) -> None:
        with Raw(server).open() as raw:
            raw.socket.sendall(bytes((0x82, 0xFF)) + b"\xff" * 8 + b"abcd")
            raw.expect_end(1002)

    def test_an_error_of_the_protocol_inside(self, server: Server) -> None:
        with Raw(server).open() as raw:
            raw.send(0x82, CONNECT + b"NONSENSE\r\n")
            raw.expect_end(1002)


class TestCompression:
    EXTENSION = "permessage-deflate; client_max_window_bits"

    def test_it_is_agreed_on(self, server: Server) -> None:
        with Raw(server) as raw:
            raw.open(Sec_WebSocket_Extensions=self.EXTENSION)
            answer = {name.lower(): value for name, value in raw.headers.items()}
            expected = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
            assert answer["sec-websocket-extensions"] == expected

    def test_both_sides_compress(self, server: Server) -> None:
        factory = ClientPerMessageDeflateFactory(
            server_no_context_takeover=True, client_no_context_takeover=True
        )
        payload = b"all work and no play " * 5000
        with connect(server.websocket_url, compression=None, extensions=[factory]) as client:
            read_until(client, b"\r\n")
            client.send(CONNECT + b"SUB a 1\r\nPUB a %d\r\n" % len(payload) + payload + b"\r\nPING\r\n")
            expected = b"MSG a 1 %d\r\n" % len(payload) + payload + b"\r\nPONG\r\n"
            assert read_until(client, b"PONG\r\n") == expected

    def test_a_compressed_message_in_fragments(self, server: Server) -> None:
        deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = deflater.compress(CONNECT + b"PING\r\n") + deflater.flush(zlib.Z_SYNC_FLUSH)
        packed = packed[:-4]
        with Raw(server).open(Sec_WebSocket_Extensions=self.EXTENSION) as raw:
            raw.send(0x42, packed[:5])
            raw.send(0x00, packed[5:20])
            raw.send(0x80, packed[20:])
            assert raw.text() == b"PONG\r\n"

    def test_no_good_data(self, server: Server) -> None:
        with Raw(server).open(Sec_WebSocket_Extensions=self.EXTENSION) as raw:
            raw.send(0xC2, b"\xff\xff\xff\xff\xff")
            raw.expect_end(1002, 1007)

    def test_off_where_it_is_not_configured(self, launch: Launch) -> None:
        server = launch(Setup(config="websocket { listen: '127.0.0.1:-1', no_tls: true }", jetstream=False))
        with Raw(server) as raw:
            raw.open(Sec_WebSocket_Extensions=self.EXTENSION)
            assert not any("extensions" in name.lower() for name in raw.headers)


class TestWhoMayCome:
    def test_same_origin_refuses_other_origins(self, launch: Launch) -> None:
        options = "no_tls: true, same_origin: true"
        server = launch(Setup(config=f"websocket {{ listen: '127.0.0.1:-1', {options} }}", jetstream=False))
        for origin, status in (
            (None, 101),
            ("http://localhost", 101),
            ("http://LOCALHOST:80", 101),
            ("https://localhost", 403),
            ("http://elsewhere", 403),
            ("http://localhost:8080", 403),
        ):
            with Raw(server) as raw:
                assert raw.ask(Origin=origin).split()[1] == str(status), origin

    def test_only_allowed_origins_are_accepted(self, launch: Launch) -> None:
        options = "no_tls: true, allowed_origins: ['http://good.example', 'https://good.example:8443']"
        server = launch(Setup(config=f"websocket {{ listen: '127.0.0.1:-1', {options} }}", jetstream=False))
        for origin, status in (
            (None, 101),
            ("http://good.example", 101),
            ("https://good.example:8443", 101),
            ("https://good.example", 403),
            ("http://good.example.evil", 403),
        ):
            with Raw(server) as raw:
                assert raw.ask(Origin=origin).split()[1] == str(status), origin

    def test_a_wrong_password_is_refused(self, launch: Launch) -> None:
        users = "authorization { user: a, password: b }"
        server = launch(Setup(config=f"{OPEN}\n{users}", jetstream=False))
        with Raw(server).open() as raw:
            assert raw.info["auth_required"] is True
            raw.send(0x82, b'CONNECT {"verbose":false,"user":"a","pass":"b"}\r\nPING\r\n')
            assert raw.text() == b"PONG\r\n"
        with Raw(server).open() as raw:
            raw.send(0x82, b'CONNECT {"verbose":false,"user":"a","pass":"x"}\r\nPING\r\n')
            assert raw.text(b"'\r\n") == b"-ERR 'Authorization Violation'\r\n"
            assert raw.expect_close() == (1008, "Authentication Failure")

    def test_kinds_of_connections(self, launch: Launch) -> None:
        users = """authorization { users: [
            {user: web, password: x, allowed_connection_types: [WEBSOCKET]}
            {user: plain, password: x, allowed_connection_types: [STANDARD]} ] }"""
        server = launch(Setup(config=f"{OPEN}\n{users}", jetstream=False))
        for user, good in (("web", True), ("plain", False)):
            with Raw(server).open() as raw:
                raw.send(0x82, f'CONNECT {{"verbose":false,"user":"{user}","pass":"x"}}\r\nPING\r\n'.encode())
                assert (raw.text(b"\r\n") == b"PONG\r\n") is good

    def test_cookies_authenticate(self, launch: Launch) -> None:
        config = """websocket { listen: '127.0.0.1:-1', no_tls: true, user_cookie: who, pass_cookie: secret }
                    authorization { user: a, password: b }"""
        server = launch(Setup(config=config, jetstream=False))
        with Raw(server).open(Cookie="x=1; who=a; secret=b") as raw:
            raw.send(0x82, CONNECT + b"PING\r\n")
            assert raw.text(b"\r\n") == b"PONG\r\n"
        with Raw(server).open(Cookie="who=a; secret=c") as raw:
            raw.send(0x82, CONNECT + b"PING\r\n")
            assert raw.text(b"\r\n") == b"-ERR 'Authorization Violation'\r\n"

    @pytest.mark.ours_only("Without `allowed_origins`, cookies of pages from other hosts are ignored")
    @pytest.mark.parametrize(
        ("origin", "more", "accepted"),
        [
            ("https://evil.example", "", False),
            ("null", "", False),
            ("https://localhost:1", "", True),
            ("https://evil.example", "allowed_origins: ['https://evil.example']", True),
        ],
    )
    def test_cookies_of_another_page_do_not_count(
        self, launch: Launch, origin: str, more: str, accepted: bool
    ) -> None:
        """A browser sends the cookies of its user with the requests of every page."""
        config = f"""websocket {{ listen: '127.0.0.1:-1', no_tls: true, user_cookie: who, pass_cookie: secret
                                 {more} }}
                    authorization {{ user: a, password: b }}"""
        server = launch(Setup(config=config, jetstream=False))
        with Raw(server).open(Cookie="who=a; secret=b", Origin=origin) as raw:
            raw.send(0x82, CONNECT + b"PING\r\n")
            assert (raw.text(b"\r\n") == b"PONG\r\n") is accepted
        with Raw(server).open(Origin=origin) as raw:
            raw.send(0x82, b'CONNECT {"verbose":false,"user":"a","pass":"b"}\r\nPING\r\n')
            assert raw.text(b"\r\n") == b"PONG\r\n"

    def test_strangers_of_this_door(self, launch: Launch) -> None:
        config = """websocket { listen: '127.0.0.1:-1', no_tls: true, no_auth_user: guest }
                    authorization { users: [{user: guest, password: x}] }"""
        server = launch(Setup(config=config, jetstream=False))
        with Raw(server).open() as raw:
            raw.send(0x82, CONNECT + b"PING\r\n")
            assert raw.text(b"\r\n") == b"PONG\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain:
            plain.sendall(b"PING\r\n")
            data = b""
            while chunk := plain.recv(4096):
                data += chunk
            assert data.endswith(b"-ERR 'Authorization Violation'\r\n")

    def test_a_silent_client_is_closed_after_the_handshake_timeout(self, launch: Launch) -> None:
        config = "websocket { listen: '127.0.0.1:-1', no_tls: true, handshake_timeout: '200ms' }"
        server = launch(Setup(config=config, jetstream=False))
        with Raw(server) as raw:
            assert raw.socket.recv(10) == b""

    def test_plain_text_must_be_configured(self, launch: Launch) -> None:
        with pytest.raises(RuntimeError, match=r"(?i)tls"):
            launch(Setup(config="websocket { port: -1 }", jetstream=False))


def test_the_ports_file_names_it(launch: Launch, tmp_path: Path) -> None:
    server = launch(Setup(config=f"{OPEN}\nports_file_dir: '{tmp_path}'", jetstream=False))
    deadline = time.monotonic() + 90
    while not (text := "".join(file.read_text() for file in tmp_path.glob("*.ports"))).endswith("}"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert json.loads(text)["websocket"] == [server.websocket_url]


class TestTls:
    def test_websockets_work_over_tls(self, launch: Launch, tmp_path: Path) -> None:
        papers = certificates.make(tmp_path)
        tls = f"tls {{ cert_file: '{papers.cert}', key_file: '{papers.key}' }}"
        server = launch(
            Setup(config=f"websocket {{ listen: '127.0.0.1:-1', {tls}, compression: true }}", jetstream=False)
        )
        assert server.websocket_url.startswith("wss://")
        context = ssl.create_default_context(cafile=papers.ca)
        with connect(server.websocket_url, ssl=context, server_hostname="localhost") as client:
            info = json.loads(read_until(client, b"\r\n")[5:])
            assert info["tls_required"] is True
            client.send(CONNECT + b"PING\r\n")
            assert read_until(client, b"PONG\r\n") == b"PONG\r\n"


def test_natsjs_in_node(server: Server, node: str) -> None:
    command = [node, "--experimental-websocket", "--no-warnings", str(FOLDER / "websocket.mjs")]
    done = subprocess.run(
        [*command, server.websocket_url], capture_output=True, text=True, timeout=150, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pages(node: str) -> Iterator[str]:
    """Serve the folder with the page and the packages over HTTP."""
    handler = functools.partial(_Quiet, directory=os.fspath(FOLDER))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}/page.html"
        web.shutdown()
        thread.join()


@pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")
@pytest.mark.xdist_group("browser")
async def test_natsjs_in_a_browser(server: Server, pages: str) -> None:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = await browser.new_page()
        await page.goto(pages)
        found = await page.evaluate("url => run(url)", server.websocket_url)
        await browser.close()
    assert found == {"messages": ["one", "two", "three"], "same": True, "asked": "why"}
