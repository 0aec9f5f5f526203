"""Requests whose subjects have very many tokens are refused before any work is done for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.jetstream_api.token_limit import TOKENS_MAX, has_too_many_tokens
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES

DEEP = ".".join(["a", "*"] * 200_000)
MANY = [".".join(["*"] * 99 + [str(number)]) for number in range(2000)]


@pytest.fixture(scope="module")
def broker() -> SimBroker:
    broker = SimBroker(SimDisk(), SIZES[0])
    broker.start()
    assert "error" not in broker.call("STREAM.CREATE.Q", name="Q", subjects=["q.>"], allow_direct=True)
    return broker


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("STREAM.CREATE.D", {"name": "D", "subjects": [DEEP]}),
        ("STREAM.CREATE.D", {"name": "D", "subjects": MANY}),
        ("STREAM.CREATE.D", {"name": "D", "republish": {"src": DEEP, "dest": "x"}}),
        ("STREAM.CREATE.D", {"name": "D", "sources": [{"name": "Q", "filter_subject": DEEP}]}),
        ("STREAM.UPDATE.Q", {"name": "Q", "subjects": ["q.>", DEEP]}),
        ("CONSUMER.CREATE.Q.C", {"stream_name": "Q", "config": {"name": "C", "filter_subject": f"q.{DEEP}"}}),
        ("STREAM.PURGE.Q", {"filter": DEEP}),
        ("STREAM.INFO.Q", {"subjects_filter": DEEP}),
        ("STREAM.NAMES", {"subject": DEEP}),
        ("STREAM.MSG.GET.Q", {"next_by_subj": DEEP, "seq": 1}),
    ],
)
def test_a_request_with_very_many_tokens_is_refused(
    broker: SimBroker, endpoint: str, body: dict[str, Any]
) -> None:
    assert broker.call(endpoint, **body)["error"]["err_code"] == 10003


def test_a_direct_get_with_very_many_tokens_is_refused(broker: SimBroker) -> None:
    number = broker.publish("$JS.API.DIRECT.GET.Q", json.dumps({"multi_last": [DEEP]}).encode())
    broker.run_until_idle()
    assert broker.replies[number].header == b"NATS/1.0 408 Bad Request\r\n\r\n"


def test_dots_count_however_they_are_written() -> None:
    for dot in (b".", rb"\u002e", rb"\u002E"):
        assert not has_too_many_tokens(b'{"a":"' + dot * TOKENS_MAX + b'"}')
        assert has_too_many_tokens(b'{"a":"' + dot * (TOKENS_MAX + 1) + b'"}')
