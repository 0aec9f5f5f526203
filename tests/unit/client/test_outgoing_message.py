"""Options of a message as headers."""

from __future__ import annotations

import pytest
from nats.js.api import Header

from headrace.client import Message
from headrace.client.outgoing_message import to_messages
from headrace.client.sourcing_consumer import _choose_deliver_policy
from headrace.client.watch import WatchOptions, check_patterns


def test_options_become_headers() -> None:
    message = Message(
        "s",
        headers={Header.ROLLUP: "sub", "A": "b"},
        expect_last_sequence=0,
        expect_last_subject_sequence=3,
        expect_last_subject="s.x",
        ttl="1h",
        msg_id="id",
        stream="S",
    )
    assert message.encode_headers() == {
        "Nats-Rollup": "sub",
        "A": "b",
        "Nats-Expected-Stream": "S",
        "Nats-Expected-Last-Sequence": "0",
        "Nats-Expected-Last-Subject-Sequence": "3",
        "Nats-Expected-Last-Subject-Sequence-Subject": "s.x",
        "Nats-TTL": "1h",
        "Nats-Msg-Id": "id",
    }
    assert Message("s").encode_headers() == {}


def test_tuples_are_messages() -> None:
    assert to_messages([("a", b"1"), ("b", b"2", {"H": "v"}), Message("c")]) == [
        Message("a", b"1"),
        Message("b", b"2", {"H": "v"}),
        Message("c"),
    ]


class TestWatchOptions:
    def test_where_a_watcher_starts(self) -> None:
        def starts(**options: object) -> tuple[object, object]:
            consumer = WatchOptions(**options).make_consumer_config("$KV.B.")  # type: ignore[arg-type]
            return consumer.deliver_policy, consumer.opt_start_seq

        assert starts() == ("last_per_subject", None)
        assert starts(include_history=True) == ("all", None)
        assert starts(updates_only=True) == ("new", None)
        assert starts(resume_from=7) == ("by_start_sequence", 7)

    def test_only_one_start(self) -> None:
        with pytest.raises(ValueError, match="include_history and updates_only"):
            WatchOptions(include_history=True, updates_only=True)

    def test_watched_keys_become_filter_subjects(self) -> None:
        assert WatchOptions(keys=("a",)).make_consumer_config("$KV.B.").filter_subjects is None
        assert WatchOptions(keys=("a", "b.>")).make_consumer_config("p.").filter_subjects == ["p.a", "p.b.>"]
        assert (check_patterns("a"), check_patterns(["a", "b"]), check_patterns([])) == (
            ("a",),
            ("a", "b"),
            (">",),
        )


def test_one_start_of_a_sourcing_consumer() -> None:
    assert _choose_deliver_policy(None, None, None) == "all"
    assert _choose_deliver_policy(5, None, None) == "by_start_sequence"
    with pytest.raises(ValueError, match="where to start"):
        _choose_deliver_policy(5, None, _choose_deliver_policy(None, None, None))
