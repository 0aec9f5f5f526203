"""The exchange with an upstream, scripted by the test: requests, gaps, flow control, retries.

The numbers of vectors are those of the sourcing specification.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client, Message
from conformance.consumer_client import eventually
from conformance.sourcing import Copying, PlayedOrigin
from headrace.jetstream_api.names import short_hash

Connect = Callable[..., Client]


@pytest.fixture
def origin(server: object, connect: Connect, name: str) -> PlayedOrigin:
    return PlayedOrigin(connect(server), f"{name}API")


def entry(origin: PlayedOrigin, **more: Any) -> dict[str, Any]:
    return {"name": "O", "external": origin.external, **more}


def begun(copying: Copying, origin: PlayedOrigin, *, mirror: bool = False, **more: Any) -> Message:
    """Create a copying stream A and return its request."""
    if mirror:
        copying.made("A", mirror=entry(origin, **more))
    else:
        copying.made("A", sources=[entry(origin, **more)])
    return origin.request()


def again_and_again(say: Callable[[], None], answer: Callable[[], Message]) -> Message:
    """Send until there is a reply: a copy receives nothing before it has processed the upstream's response."""
    for _ in range(15):
        say()
        try:
            return answer()
        except TimeoutError:
            continue
    raise AssertionError("there was no answer")


class TestRequest:
    def test_a_source_requests_an_ephemeral_consumer(self, copying: Copying, origin: PlayedOrigin) -> None:
        request = begun(copying, origin)
        assert request.subject == f"{origin.api}.CONSUMER.CREATE.O"
        assert request.headers == {"Nats-Required-Api-Level": "5", "Nats-Stream-Identity": ""}
        config = request.json["config"]
        deliver = config["deliver_subject"]
        assert deliver.startswith("$JS.S.")
        assert len(deliver) == 14
        assert request.json == {
            "stream_name": "O",
            "config": {
                "name": "JS_SRC_" + short_hash(short_hash(f"{copying.name}A $G")),
                "deliver_policy": "all",
                "ack_policy": "none",
                "ack_wait": 79200000000000,
                "max_deliver": 1,
                "replay_policy": "instant",
                "flow_control": True,
                "deliver_subject": deliver,
                "idle_heartbeat": 1000000000,
                "inactive_threshold": 10000000000,
                "num_replicas": 0,
                "direct": True,
                "sourcing": True,
                "metadata": {"_nats.src.acc": "$G", "_nats.src.stream": f"{copying.name}A"},
            },
            "action": "",
        }
        assert list(config) == [
            "name", "deliver_policy", "ack_policy", "ack_wait", "max_deliver", "replay_policy", "flow_control",
            "deliver_subject", "idle_heartbeat", "inactive_threshold", "num_replicas", "direct", "sourcing", "metadata",
        ]  # fmt: skip

    def test_a_mirror_requests_a_named_consumer(self, copying: Copying, origin: PlayedOrigin) -> None:
        request = begun(copying, origin, mirror=True, opt_start_seq=7)
        assert request.headers == {"Nats-Required-Api-Level": "4"}
        config = request.json["config"]
        assert config["name"] == "JS_MIRROR_" + short_hash(f"{copying.name}A $G")
        assert (config["deliver_policy"], config["opt_start_seq"]) == ("by_start_sequence", 7)
        assert config["metadata"] == {"_nats.mirror.acc": "$G", "_nats.mirror.stream": f"{copying.name}A"}

    def test_a_filter_is_in_the_subject(self, copying: Copying, origin: PlayedOrigin) -> None:
        request = begun(copying, origin, filter_subject="o.1")
        config = request.json["config"]
        assert config["filter_subject"] == "o.1"
        assert request.subject == f"{origin.api}.CONSUMER.CREATE.O.{config['name']}.o.1"

    def test_several_filters_are_not(self, copying: Copying, origin: PlayedOrigin) -> None:
        transforms = [{"src": "o.1", "dest": ""}, {"src": "o.2", "dest": "two"}]
        request = begun(copying, origin, subject_transforms=transforms)
        assert request.json["config"]["filter_subjects"] == ["o.1", "o.2"]
        assert request.subject == f"{origin.api}.CONSUMER.CREATE.O"

    def test_older_origins_are_asked_with_less(self, copying: Copying, origin: PlayedOrigin) -> None:
        """Vector 13."""
        request = begun(copying, origin)
        name = request.json["config"]["name"]
        origin.refuse(request, 412, 10185)
        second = origin.request()
        assert second.headers == {"Nats-Required-Api-Level": "4"}
        assert second.json["config"]["name"] == name
        origin.refuse(second, 400, 10025)
        third = origin.request()
        assert not third.header
        assert "sourcing" not in third.json["config"]
        made, _, suffix = third.json["config"]["name"].rpartition("_")
        assert (made, len(suffix)) == (name, 8)
        assert len({request.reply, second.reply, third.reply}) == 3

    def test_where_the_deliver_prefix_says(self, copying: Copying, origin: PlayedOrigin) -> None:
        external = {"api": origin.api, "deliver": f"{copying.name}D"}
        copying.made("A", sources=[{"name": "O", "external": external}])
        assert origin.request().json["config"]["deliver_subject"].startswith(f"{copying.name}D.S.")


class TestTrouble:
    def test_an_error_is_shown_and_tried_again_later(self, copying: Copying, origin: PlayedOrigin) -> None:
        """Vector 12."""
        request = begun(copying, origin)
        started = time.monotonic()
        origin.refuse(request, 404, 10059)
        shown = eventually(lambda: copying.info("A")["sources"][0].get("error"))
        assert shown == {"code": 404, "err_code": 10059, "description": "no"}
        origin.request()
        assert 11.5 < time.monotonic() - started < 60

    @pytest.mark.parametrize("mirror", [False, True], ids=["source", "mirror"])
    def test_flow_control_is_answered(self, copying: Copying, origin: PlayedOrigin, mirror: bool) -> None:
        origin.accept(begun(copying, origin, mirror=mirror), seq=4)
        sid = origin.client.subscribe(f"{copying.name}FC")

        def ask() -> None:
            origin.status("FlowControl Request", reply=f"{copying.name}FC")

        answer = again_and_again(ask, lambda: origin.client.next(sid, 0.5))
        assert answer.header == b"NATS/1.0\r\nNats-Last-Consumer: 0\r\nNats-Last-Stream: 4\r\n\r\n"
        assert answer.payload == b""

    def test_a_heartbeat_that_knows_more(self, copying: Copying, origin: PlayedOrigin) -> None:
        """Vector 11."""
        origin.accept(begun(copying, origin), seq=3)

        def beat() -> None:
            origin.heartbeat(0, 0)
            origin.heartbeat(9, 9)

        config = again_and_again(beat, lambda: origin.request(0.5)).json["config"]
        assert (config["deliver_policy"], config["opt_start_seq"]) == ("by_start_sequence", 4)

    def test_an_origin_of_another_identity(self, copying: Copying, origin: PlayedOrigin) -> None:
        """Vector 14."""
        origin.accept(begun(copying, origin), seq=2, Nats_Stream_Identity="first")
        request = again_and_again(lambda: origin.heartbeat(9, 9), lambda: origin.request(0.5))
        assert request.headers["Nats-Stream-Identity"] == "first"
        assert request.json["config"]["opt_start_seq"] == 3
        origin.refuse(request, 400, 10225)
        request = origin.request()
        assert request.headers["Nats-Stream-Identity"] == ""
        assert request.json["config"]["deliver_policy"] == "all"

    def test_the_answers_position_counts(self, copying: Copying, origin: PlayedOrigin) -> None:
        origin.accept(begun(copying, origin, mirror=True), seq=10)
        copying.until_last("A", 10)
        assert copying.state("A") == (0, 11, 10, 0)
