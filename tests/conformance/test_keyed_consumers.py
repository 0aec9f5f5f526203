"""Order per key and dead letters, which nats-server refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.consumer_client import MS, SECOND, Reading, ack_of, eventually, seqs_of

Make = Callable[..., Reading]


@pytest.fixture
def six(reading: Make) -> Reading:
    """Six messages on a and b in turn."""
    stream = reading()
    stream.fill(6, "a", "b")
    return stream


class Letters(Reading):
    """A stream of dead letters."""

    def __init__(self, other: Reading, **config: Any) -> None:
        super().__init__(other.client, f"{other.name}-dead")
        body = {"name": self.name, "subjects": [f"{self.name}.>"], **config}
        assert "error" not in self.client.api(f"STREAM.CREATE.{self.name}", body)


@pytest.mark.ours_only("Order per key: `max_ack_pending_per_subject`, `key_tokens`")
def test_the_next_message_of_a_subject_waits_for_the_ack(six: Reading) -> None:
    info = six.made("P", max_ack_pending_per_subject=1)
    assert info["config"]["max_ack_pending_per_subject"] == 1
    first = six.available("P")
    assert seqs_of(first) == [1, 2]
    info = six.info("P")
    assert (info["num_blocked_subjects"], info["num_pending"], info["num_ack_pending"]) == (2, 4, 2)
    six.confirm(first[1])
    second = six.available("P")
    assert seqs_of(second) == [4]
    six.confirm(first[0], b"-NAK")
    again = six.available("P")
    assert [(ack_of(each).seq, ack_of(each).delivered) for each in again[:-1]] == [(1, 2)]
    six.confirm(again[0])
    six.confirm(second[0])
    assert sorted(seqs_of(six.available("P"))) == [3, 6]


@pytest.mark.ours_only("Order per key: `max_ack_pending_per_subject`, `key_tokens`")
def test_a_limit_above_one_and_key_tokens(reading: Make) -> None:
    stream = reading()
    stream.fill(6, "x.a", "y.a", "z.b")
    stream.made("T", max_ack_pending_per_subject=2, metadata={"headrace.key_tokens": "3"})
    assert seqs_of(stream.available("T")) == [1, 2, 3, 6]


@pytest.mark.ours_only("Order per key: `max_ack_pending_per_subject`, `key_tokens`")
def test_metadata_has_the_same_meaning(six: Reading) -> None:
    info = six.made("M", metadata={"headrace.max_ack_pending_per_subject": "1"})
    assert info["config"]["max_ack_pending_per_subject"] == 1
    assert seqs_of(six.available("M")) == [1, 2]


@pytest.mark.ours_only("Order per key: `max_ack_pending_per_subject`, `key_tokens`")
@pytest.mark.parametrize(
    "config",
    [
        {"ack_policy": "all", "max_ack_pending_per_subject": 1},
        {"ack_policy": "none", "max_ack_pending_per_subject": 1},
        {"max_ack_pending_per_subject": -1},
        {"key_tokens": "1"},
        {"max_ack_pending_per_subject": 1, "key_tokens": "0"},
        {"max_ack_pending_per_subject": 1, "key_tokens": "1,1"},
    ],
)
def test_what_does_not_work_is_refused(six: Reading, config: dict[str, Any]) -> None:
    assert six.create("P", **config)["error"]["err_code"] == 10052


@pytest.mark.ours_only("Order per key: `max_ack_pending_per_subject`, `key_tokens`")
def test_key_tokens_stay_and_the_limit_can_change(six: Reading) -> None:
    six.made("P", max_ack_pending_per_subject=1)
    assert six.create("P", max_ack_pending_per_subject=1, key_tokens="1")["error"]["err_code"] == 10012
    assert seqs_of(six.available("P")) == [1, 2]
    six.made("P", max_ack_pending_per_subject=2)
    assert sorted(seqs_of(six.available("P"))) == [3, 4]
    six.made("P")
    assert sorted(seqs_of(six.available("P"))) == [5, 6]
    assert eventually(lambda: "num_blocked_subjects" not in six.info("P"))


@pytest.mark.ours_only(
    "With order per key, an ack, nak or term for an earlier delivery of a message is ignored"
)
def test_an_ack_for_an_earlier_delivery_does_not_free_the_key(six: Reading) -> None:
    six.made("P", max_ack_pending_per_subject=1, ack_wait=300 * MS, filter_subject=six.subject("a"))
    first = six.fetch("P", 1)[0]
    second = six.fetch("P", 1)[0]
    assert (ack_of(second).seq, ack_of(second).delivered) == (1, 2)
    assert six.silent(first.reply, b"+ACK")
    six.confirm(second)
    assert ack_of(six.fetch("P", 1)[0]).seq == 3


@pytest.mark.ours_only("Dead letters: `dead_letter`")
@pytest.mark.parametrize("reason", ["term", "max_deliver"])
def test_a_message_that_is_given_up_becomes_a_dead_letter(six: Reading, reason: str) -> None:
    letters = Letters(six)
    subject = letters.subject("dead")
    six.made("P", dead_letter={"subject": subject}, max_deliver=1, ack_wait=200 * MS)
    message = six.fetch("P", 1)[0]
    if reason == "term":
        six.confirm(message, b"+TERM bad input")
    assert eventually(lambda: letters.state()["messages"] == 1)
    stored = six.client.api(f"STREAM.MSG.GET.{letters.name}", {"seq": 1})["message"]
    assert stored["subject"] == subject
    six.client.api(f"STREAM.MSG.REDRIVE.{letters.name}", {"seq": 1})
    assert letters.state()["messages"] == 0
    assert six.state()["last_seq"] == 7


@pytest.mark.ours_only("Dead letters: `dead_letter`")
def test_dead_letters_that_nobody_stores_are_refused(six: Reading) -> None:
    nowhere = six.create("P", dead_letter={"subject": "nobody.captures.this"})
    assert "no stream of this account" in nowhere["error"]["description"]
    itself = six.create("P", dead_letter={"subject": six.subject("a")})
    assert "come back to the same stream" in itself["error"]["description"]
    wrong = six.create("P", dead_letter={"subject": six.subject("a.*"), "on": ["nak"]})
    assert wrong["error"]["err_code"] == 10052


@pytest.mark.ours_only("Dead letters: `dead_letter`")
def test_a_message_stays_pending_while_dead_letters_cannot_be_stored(six: Reading) -> None:
    letters = Letters(six, max_msgs=1, discard="new")
    letters.fill(1, "first")
    dead_letter = {"subject": letters.subject("dead"), "on": ["term"]}
    six.made("P", dead_letter=dead_letter, ack_wait=SECOND)
    assert six.silent(six.fetch("P", 1)[0].reply, b"+TERM")
    assert six.info("P")["num_ack_pending"] == 1
    six.client.api(f"STREAM.PURGE.{letters.name}", {})
    six.confirm(six.fetch("P", 1)[0], b"+TERM")
    assert letters.state()["messages"] == 1
