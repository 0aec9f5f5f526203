"""Per-message TTL and delete markers: every row of the tables in the specification, on both servers.

Tests that need real seconds use many streams at once; `sim/test_ttl.py` has the same rules in virtual time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client
from conformance.servers import Server

Make = Callable[..., dict[str, Any]]
SECOND = 1_000_000_000
INVALID = {"code": 400, "err_code": 10165, "description": "invalid per-message TTL"}
DISABLED = {"code": 400, "err_code": 10166, "description": "per-message TTL is disabled"}

ACCEPTED = [
    "1",
    "01",
    "007",
    "1s",
    "1000ms",
    "1000000us",
    "1000000µs",
    "1000000000ns",
    "1.s",
    "+5s",
    "1h30m",
    "1m0.5s",
]
ACCEPTED += ["never", "Never", "NEVER", "", " 5", "  5s", "00"]
REFUSED = [
    ".5s",
    "999ms",
    "500ms",
    "1us",
    "-5s",
    "-1",
    "+5",
    "0.5",
    "1.5",
    "1.",
    "1e3",
    "1_000",
    "0x10",
    "1d",
    "1w",
    "1H",
]
REFUSED += [
    "1 s",
    "1s1",
    "garbage",
    "∞",
    "５",
    "5 ",
    "5s ",
    "1h ",
    "never ",
    "5\t",
    "\t5",
    "3000000h",
    "9223372036854775808",
]


def publish(client: Client, subject: str, *lines: str, payload: str = "x") -> dict[str, Any]:
    """Publish with header lines exactly as given."""
    block = ("NATS/1.0\r\n" + "".join(line + "\r\n" for line in lines) + "\r\n").encode()
    body = payload.encode()
    sid = client.subscribe(inbox := f"_T.{time.monotonic_ns()}")
    client.send(
        b"HPUB %s %s %d %d\r\n%s%s\r\n"
        % (subject.encode(), inbox.encode(), len(block), len(block) + len(body), block, body)
    )
    answer: dict[str, Any] = client.next(sid).json
    client.unsubscribe(sid)
    return answer


def state(client: Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = client.api(f"STREAM.INFO.{name}", {"subjects_filter": ">"})["state"]
    return found


def stored(client: Client, name: str, subject: str) -> bytes:
    """Return the header block of a subject's last message, without what direct get adds."""
    header = client.request(f"$JS.API.DIRECT.GET.{name}.{subject}").header
    return header.partition(b"Nats-Stream:")[0]


class TestHeader:
    @pytest.mark.parametrize("value", ACCEPTED)
    def test_valid_ttls_are_accepted(self, client: Client, make_stream: Make, name: str, value: str) -> None:
        make_stream(allow_msg_ttl=True)
        assert publish(client, f"{name}.a", f"Nats-TTL: {value}") == {"stream": name, "seq": 1}

    @pytest.mark.parametrize("value", REFUSED)
    def test_invalid_marker_configurations_are_refused(
        self, client: Client, make_stream: Make, name: str, value: str
    ) -> None:
        make_stream(allow_msg_ttl=True)
        assert publish(client, f"{name}.a", f"Nats-TTL: {value}") == {
            "error": INVALID,
            "stream": name,
            "seq": 0,
        }
        assert state(client, name)["messages"] == 0

    @pytest.mark.parametrize("line", ["nats-ttl: 1", "NATS-TTL: 1", "Nats-Ttl: 1", "Nats-TTL : 1"])
    def test_the_name_is_exact(self, client: Client, make_stream: Make, name: str, line: str) -> None:
        make_stream(allow_msg_ttl=False)
        assert publish(client, f"{name}.a", line)["seq"] == 1

    def test_the_first_of_several_counts(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(allow_msg_ttl=True)
        assert publish(client, f"{name}.a", "Nats-TTL: 5", "Nats-TTL: garbage")["seq"] == 1
        assert publish(client, f"{name}.a", "Nats-TTL: garbage", "Nats-TTL: 5")["error"] == INVALID

    @pytest.mark.parametrize(
        ("value", "error"), [("5", DISABLED), ("never", DISABLED), ("bad", INVALID), ("0", INVALID)]
    )
    def test_a_stream_without_ttl(
        self, client: Client, make_stream: Make, name: str, value: str, error: dict[str, Any]
    ) -> None:
        make_stream()
        assert publish(client, f"{name}.a", f"Nats-TTL: {value}")["error"] == error
        assert publish(client, f"{name}.a", "Nats-TTL: ")["seq"] == 1

    @pytest.mark.ours_only("A zero TTL is ignored")
    def test_a_stream_without_ttl_rejects_every_zero(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        assert publish(client, f"{name}.a", "Nats-TTL: 00")["error"] == INVALID

    def test_its_place_among_the_checks(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        client.store(f"{name}.a")
        expected = "Nats-Expected-Last-Sequence: 77"
        assert publish(client, f"{name}.a", "Nats-TTL: 5", expected)["error"] == DISABLED
        refusal = publish(client, f"{name}.a", "Nats-TTL: bad", expected)["error"]
        assert refusal["description"] == "wrong last sequence: 1"

    def test_it_is_kept_as_sent(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(allow_msg_ttl=True, allow_direct=True)
        publish(client, f"{name}.a", "Foo: 1", "Nats-TTL: 1h30m", "Bar: 2")
        assert stored(client, name, f"{name}.a") == b"NATS/1.0\r\nFoo: 1\r\nNats-TTL: 1h30m\r\nBar: 2\r\n"

    @pytest.mark.ours_only("A TTL is validated without interest too")
    def test_an_invalid_ttl_is_refused_without_interest_too(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(allow_msg_ttl=True, retention="interest")
        assert publish(client, f"{name}.a", "Nats-TTL: bad")["error"] == INVALID


class TestFloor:
    """With markers and more than one message per subject, no TTL is shorter than a marker's."""

    def test_a_short_ttl_is_raised_to_the_marker_ttl(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(subject_delete_marker_ttl=60 * SECOND, allow_direct=True)
        publish(client, f"{name}.a", "Foo: 1", "Nats-TTL: 1", "Bar: 2")
        assert stored(client, name, f"{name}.a") == b"NATS/1.0\r\nFoo: 1\r\nBar: 2\r\nNats-TTL: 60\r\n"

    @pytest.mark.parametrize("value", ["never", "61s"])
    def test_a_longer_ttl_is_stored_as_sent(
        self, client: Client, make_stream: Make, name: str, value: str
    ) -> None:
        make_stream(subject_delete_marker_ttl=60 * SECOND, allow_direct=True)
        publish(client, f"{name}.a", f"Nats-TTL: {value}")
        assert stored(client, name, f"{name}.a") == b"NATS/1.0\r\nNats-TTL: %s\r\n" % value.encode()

    def test_one_message_a_subject(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(subject_delete_marker_ttl=60 * SECOND, max_msgs_per_subject=1, allow_direct=True)
        publish(client, f"{name}.a", "Nats-TTL: 30")
        assert stored(client, name, f"{name}.a") == b"NATS/1.0\r\nNats-TTL: 30\r\n"


CONFIGURATIONS = [
    ({"subject_delete_marker_ttl": 1}, "subject delete marker TTL must be at least 1 second"),
    ({"subject_delete_marker_ttl": SECOND - 1}, "subject delete marker TTL must be at least 1 second"),
    ({"subject_delete_marker_ttl": -1}, "subject delete marker TTL must not be negative"),
    (
        {"subject_delete_marker_ttl": SECOND, "pedantic": True},
        "subject delete marker cannot be set if message TTLs are disabled",
    ),
    (
        {"subject_delete_marker_ttl": SECOND, "allow_msg_ttl": True, "pedantic": True},
        "subject delete marker cannot be set if roll-ups are disabled",
    ),
    (
        {"subject_delete_marker_ttl": SECOND, "allow_rollup_hdrs": True, "deny_purge": True},
        "roll-ups require the purge permission",
    ),
    ({"allow_msg_counter": True, "allow_msg_ttl": True}, "counter stream cannot use message TTLs"),
]


class TestConfiguration:
    @pytest.mark.parametrize(("fields", "text"), CONFIGURATIONS)
    def test_invalid_marker_configurations_are_refused(
        self, client: Client, name: str, fields: dict[str, Any], text: str
    ) -> None:
        answer = client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], **fields})
        assert answer["error"] == {"code": 500, "err_code": 10052, "description": text}

    def test_a_mirror_has_no_markers(self, client: Client, name: str) -> None:
        config = {"name": name, "mirror": {"name": "O"}, "subject_delete_marker_ttl": SECOND}
        answer = client.api(f"STREAM.CREATE.{name}", config)
        assert answer["error"]["description"] == "subject delete markers forbidden on mirrors"

    def test_what_a_marker_ttl_brings(self, client: Client, make_stream: Make, name: str) -> None:
        config = make_stream(subject_delete_marker_ttl=SECOND)["config"]
        assert (config["allow_msg_ttl"], config["allow_rollup_hdrs"], config["deny_purge"]) == (
            True,
            True,
            False,
        )
        assert config["metadata"]["_nats.req.level"] == "1"

    def test_message_ttls_can_be_enabled_and_not_disabled(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        base = {"name": name, "subjects": [f"{name}.>"]}
        make_stream()
        update = f"STREAM.UPDATE.{name}"
        assert "error" not in client.api(update, {**base, "allow_msg_ttl": True})
        refusal = client.api(update, base)["error"]
        assert refusal["description"] == "message TTL status can not be disabled"
        for ttl in (2 * SECOND, 5 * SECOND, 0):
            config = {**base, "allow_msg_ttl": True, "subject_delete_marker_ttl": ttl}
            assert client.api(update, config)["config"].get("subject_delete_marker_ttl", 0) == ttl

    @pytest.mark.ours_only("`subject_delete_markers` is supported")
    def test_subject_delete_markers_sets_the_default_marker_ttl(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        config = make_stream(subject_delete_markers=True, allow_msg_ttl=True)["config"]
        assert config["subject_delete_markers"] is True
        assert config["subject_delete_marker_ttl"] == 900 * SECOND

    @pytest.mark.ours_only("`subject_delete_markers` is supported")
    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            (
                {"subject_delete_markers": True},
                "subject delete marker cannot be set if message TTLs are disabled",
            ),
            (
                {
                    "subject_delete_markers": True,
                    "allow_msg_ttl": True,
                    "allow_rollup_hdrs": True,
                    "pedantic": True,
                },
                "subject delete marker TTL must be set",
            ),
        ],
    )
    def test_the_other_spelling_refused(
        self, client: Client, name: str, fields: dict[str, Any], text: str
    ) -> None:
        answer = client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], **fields})
        assert answer["error"]["description"] == text


def wait_for(check: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.mark.slow
class TestRealTime:
    """The only test in real seconds: what expires, when, and what replaces it."""

    def test_expiry_and_markers(self, client: Client, server: Server, name: str) -> None:
        def make(letter: str, **fields: Any) -> str:
            stream = f"{name}{letter}"
            answer = client.api(
                f"STREAM.CREATE.{stream}",
                {"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True, **fields},
            )
            assert "error" not in answer, answer
            return stream

        aged = make("a", allow_msg_ttl=True, max_age=2 * SECOND)
        marked = make("m", subject_delete_marker_ttl=30 * SECOND, max_msgs_per_subject=1)
        brief = make("b", subject_delete_marker_ttl=SECOND, max_msgs_per_subject=1)
        several = make("s", subject_delete_marker_ttl=30 * SECOND, max_age=SECOND)
        start = time.monotonic()
        for value in ("5", "never"):
            publish(client, f"{aged}.{value}", f"Nats-TTL: {value}")
        publish(client, f"{aged}.none")
        for stream in (marked, brief):
            publish(client, f"{stream}.a", "Nats-TTL: 1")
            publish(client, f"{stream}.purge", "Nats-TTL: 1", "KV-Operation: PURGE")
            publish(client, f"{stream}.del", "Nats-TTL: 1", "KV-Operation: DEL")
        for _ in range(3):
            client.ask(f"{several}.a")  # at the same time, so that all exist before the first one expires

        wait_for(lambda: state(client, marked)["last_seq"] == 5)
        assert set(state(client, marked)["subjects"]) == {f"{marked}.a", f"{marked}.del"}
        marker = stored(client, marked, f"{marked}.a")
        assert marker.startswith(
            b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 30s\r\nNats-Rollup: sub\r\n"
        )
        wait_for(lambda: state(client, several)["last_seq"] == 4)
        assert state(client, several)["subjects"] == {f"{several}.a": 1}

        wait_for(lambda: set(state(client, aged)["subjects"]) == {f"{aged}.never"})
        assert time.monotonic() - start > 1.95
        wait_for(lambda: state(client, brief)["messages"] == 0 and state(client, brief)["last_seq"] == 5)

    def test_fractions_of_a_second_do_not_count(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(allow_msg_ttl=True)
        lasted: list[float] = []
        while not lasted or lasted[-1] >= 1.9:
            assert len(lasted) < 5, (
                f"never less than was asked for, or the machine is too slow to tell: {lasted}"
            )
            start = time.monotonic()
            publish(client, f"{name}.1", "Nats-TTL: 1")
            publish(client, f"{name}.2", "Nats-TTL: 1.9s")
            publish(client, f"{name}.n", "Nats-TTL: never")
            wait_for(lambda: set(state(client, name)["subjects"]) == {f"{name}.n"})
            lasted.append(time.monotonic() - start)
            assert lasted[-1] > 0.95

    def test_what_expired_while_it_was_down(self, fresh_server: Server) -> None:
        with Client(fresh_server.port) as client:
            for stream, fields in (("A", {}), ("K", {"subject_delete_marker_ttl": 60 * SECOND})):
                config = {"name": stream, "subjects": [f"{stream}.>"], "allow_msg_ttl": True, **fields}
                client.api(f"STREAM.CREATE.{stream}", {**config, "max_msgs_per_subject": 1})
                publish(client, f"{stream}.a", "Nats-TTL: 1")
                publish(client, f"{stream}.b", "Nats-TTL: 1h")
        stopped = time.monotonic()
        fresh_server.stop()
        while time.monotonic() < stopped + 1.1:
            time.sleep(0.05)
        fresh_server.start()
        with Client(fresh_server.port) as client:
            if fresh_server.is_ours:  # nats-server serves overdue messages for a moment
                assert set(state(client, "A")["subjects"]) == {"A.b"}
            wait_for(lambda: set(state(client, "A")["subjects"]) == {"A.b"})
            wait_for(lambda: state(client, "K")["last_seq"] == 3)
            assert state(client, "K")["subjects"] == {"K.a": 1, "K.b": 1}
