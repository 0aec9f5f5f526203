"""`headrace.jetstream_api` validates requests as nats-server does: the same error, or the same configuration.

Each request is validated by our functions and by a real nats-server: hand-written bodies, and configurations drawn at
random. A failure names its seed; `pytest <this file> -k 'streams and 3'` runs it alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conformance import config_samples as samples
from conformance.client import Client
from conformance.servers import NATS_SERVER, Server
from headrace.errors import RequestError
from headrace.jetstream_api import configs, decode, requests, responses
from headrace.jetstream_api.validation import consumers, streams

VERSION = "2.15.1"
STREAMS = 350
CONSUMERS = 300

Judgement = tuple[Any, ...]


@pytest.fixture(scope="module")
def nats_server() -> Iterator[Client]:
    with Server(NATS_SERVER) as running, Client(running.port) as client:
        client.api("STREAM.CREATE.S", {"name": "S"})
        yield client


def theirs(client: Client, operation: str, body: bytes, until: bytes) -> tuple[Judgement, dict[str, Any]]:
    """Return nats-server's error, or the bytes of the configuration that it returns (which end at `until`)."""
    payload = client.request("$JS.API." + operation, body).payload
    answer = json.loads(payload)
    if "error" in answer:
        error = answer["error"]
        return (error["code"], error["err_code"], error["description"]), answer
    start = payload.index(b'"config":') + len(b'"config":')
    return ("ok", payload[start : payload.index(until, start)]), answer


def refused(error: RequestError) -> Judgement:
    return error.code, error.err_code, error.description


def accepted(config: configs.ApiStruct) -> Judgement:
    return "ok", bytes(responses.encode_public_config(config, VERSION))


def encode(body: Any) -> bytes:
    return json.dumps(body).encode()


BROKEN = Path(__file__).with_name("broken_stream_bodies.txt").read_bytes().splitlines()
BROKEN += [
    b"\xff",
    b"{\xff",
    b'{"a\xffb":1}',
    b'{"a":\xe2\x82}',
    b"\xef\xbb\xbf{}",
    b'{"a":"\x01"}',
    b'{"n\ta":1}',
]


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: body.decode("utf-8", "replace"))
def test_a_broken_stream_body_is_refused_in_the_same_words(nats_server: Client, body: bytes) -> None:
    expected, _ = theirs(nats_server, "STREAM.CREATE.Q", body, b',"created"')
    with pytest.raises(RequestError) as caught:
        decode.decode_stream(body)
    assert refused(caught.value) == expected


SOUND = [
    '{"NAME":"Q","ſubjects":["ss"],"Max_Msgs":7}',
    '{"name":"Q","discard":"NEW","max_msgs":1,"persist_mode":""}',
    '{"name":"Q","max_msgs":null,"subjects":null,"mirror":null,"metadata":{"a":null},"consumer_limits":null}',
    '{"name":"Q"}{"max_msgs":7} ',
    '{"name":"Q","description":"\\u2028\\b\\f\\u0001\\u007f\\\\/\\ud800x<>&\\u00e9"}',
    '{"name":"Q","first_seq":2305843009213693952}',
    '{"name":"Q","sources":[{"name":"a","opt_start_time":"2020-02-03T4:00:00,50Z"}]}',
    '{"name":"Q","sources":[{"name":"a","opt_start_time":"2020-02-29T00:00:00.1234567891+01:30"}]}',
    '{"name":"Q","sources":[{"name":"a","opt_start_time":null,"external":null}]}',
]


@pytest.mark.parametrize("body", SOUND)
def test_an_odd_but_sound_stream_body_gives_the_same_configuration(nats_server: Client, body: str) -> None:
    expected, _ = theirs(nats_server, "STREAM.CREATE.Q", body.encode(), b',"created"')
    nats_server.api("STREAM.DELETE.Q")
    config, strict = decode.decode_stream(body.encode())
    assert accepted(streams.validate_create(config, "Q", {}, strict=strict)) == expected


ENDPOINTS: list[tuple[str, type[configs.ApiStruct], str]] = [
    ("STREAM.INFO.S", requests.StreamInfoRequest, '{"offset":"x"}|{"subjects_filter":5}|{"zz":5}|[]'),
    ("STREAM.NAMES", requests.StreamNamesRequest, '{"offset":"x"}|{"subject":5}|{"a":5}'),
    ("STREAM.LIST", requests.StreamListRequest, '{"offset":1.5}|[1'),
    ("STREAM.PURGE.S", requests.PurgeRequest, '{"seq":-1}|{"filter":5}| {"zz":5}'),
    ("STREAM.MSG.GET.S", requests.MessageGetRequest, '{"start_time":"x"}|{"multi_last":5}|x|[]'),
    ("STREAM.MSG.DELETE.S", requests.MessageDeleteRequest, '{"seq":"x"}|x'),
    ("STREAM.SNAPSHOT.S", requests.SnapshotRequest, '{"deliver_subject":5}|{"zz":5}|{"a":1,'),
    ("STREAM.RESTORE.S", requests.RestoreRequest, '{"config":{"name":5}}|{"state":{"messages":-1}}'),
    ("CONSUMER.NAMES.S", requests.ConsumersRequest, '{"offset":"x"}|{"zz":"x"}'),
    ("CONSUMER.LIST.S", requests.ConsumersRequest, "[]"),
    ("CONSUMER.PAUSE.S.C", requests.PauseRequest, '{"pause_until":"x"}|{"pause_until":5}|{"zz":1}|[]'),
    (
        "CONSUMER.CREATE.S.C",
        requests.ConsumerRequest,
        '{"action":"zzz"}|{"action":null}|{"config":5}|{"zz":1}',
    ),
]
CONSUMER_FIELDS = (
    '"ack_policy":"x"|"ack_policy":null|"deliver_policy":"x"|"replay_policy":5|"priority_policy":"zzz"|'
    '"priority_policy":5|"max_deliver":"x"|"backoff":5|"backoff":["x"]|"backoff":[1.5]|"opt_start_seq":-1|'
    '"pause_until":"x"|"pause_until":5|"rate_limit_bps":-1|"priority_groups":5|"sample_freq":5|"zz":1'
)


def _endpoint_cases() -> Iterator[tuple[str, type[configs.ApiStruct], bytes]]:
    for operation, kind, bodies in ENDPOINTS:
        yield from ((operation, kind, body.encode()) for body in bodies.split("|"))
    for field in CONSUMER_FIELDS.split("|"):
        yield "CONSUMER.CREATE.S.C", requests.ConsumerRequest, b'{"config":{%b}}' % field.encode()


@pytest.mark.parametrize(("operation", "kind", "body"), list(_endpoint_cases()))
def test_every_endpoint_refuses_a_broken_body_in_the_same_words(
    nats_server: Client, operation: str, kind: type[configs.ApiStruct], body: bytes
) -> None:
    expected, _ = theirs(nats_server, operation, body, b"")
    with pytest.raises(RequestError) as caught:
        decode.decode(kind, body)
    assert refused(caught.value) == expected


LENIENT = ["{", '{"batch":"x"}', "{bad", '{"batch":1} x', '{"expires":1.5}', '{"id":5}', '{"batch":"\\q"}']


@pytest.mark.parametrize("body", LENIENT)
def test_a_broken_pull_request_is_refused_in_the_same_words(nats_server: Client, body: str) -> None:
    nats_server.api("STREAM.CREATE.PULL", {"name": "PULL"})
    nats_server.api("CONSUMER.CREATE.PULL.C", {"stream_name": "PULL", "config": {"durable_name": "C"}})
    status = nats_server.request("$JS.API.CONSUMER.MSG.NEXT.PULL.C", body.encode()).status
    with pytest.raises(RequestError) as caught:
        decode.decode_next(body.encode())
    assert f"400 Bad Request - {caught.value.description}" == status


def judged_stream(
    body: bytes, existing: dict[str, configs.StreamConfig], operation: str
) -> tuple[Judgement, configs.StreamConfig | None]:
    judge = streams.validate_create if operation == "CREATE" else streams.validate_update
    try:
        config, strict = decode.decode_stream(body)
        made = judge(config, "Q", existing, strict=strict)
    except RequestError as error:
        return refused(error), None
    return accepted(made), made


CIRCLE: Judgement = (500, 10052, "detected cycle")


def _origins(nats_server: Client) -> dict[str, configs.StreamConfig]:
    existing: dict[str, configs.StreamConfig] = {}
    bodies: list[dict[str, Any]] = [
        {"name": "O", "subjects": ["o.>"], "allow_direct": True, "max_msg_size": 100},
        {"name": "P", "sources": [{"name": "Q"}]},
        {"name": "M", "mirror": {"name": "Q"}},
    ]
    for body in bodies:
        nats_server.api("STREAM.CREATE." + body["name"], body)
        config, _ = decode.decode_stream(encode(body))
        existing[body["name"]] = streams.validate_create(config, body["name"], existing)
    return existing


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_streams_are_judged_as_nats_server_judges_them(nats_server: Client, seed: int) -> None:
    rng = random.Random(seed)
    nats_server.api("STREAM.DELETE.Q")
    existing = _origins(nats_server)
    for number in range(STREAMS):
        body = samples.stream(rng)
        steps = [("CREATE", body)]
        if rng.random() < 0.4:
            steps.append((rng.choice(["UPDATE", "UPDATE", "CREATE"]), samples.changed_stream(rng, body)))
        for operation, step in steps:
            if not samples.comparable(step):
                break
            expected, _ = theirs(nats_server, f"STREAM.{operation}.Q", encode(step), b',"created":"')
            judgement, made = judged_stream(encode(step), existing, operation)
            if judgement == CIRCLE != expected:
                break  # only Headrace detects messages that would go round in a cycle: docs/reference/compatibility.md
            assert judgement == expected, f"seed {seed}, number {number}: {operation} {str(step)[:2000]}"
            if made is None:
                break
            existing["Q"] = made
        existing.pop("Q", None)
        nats_server.api("STREAM.DELETE.Q")
    for name in existing:
        nats_server.api(f"STREAM.DELETE.{name}")


PARENTS: dict[str, dict[str, Any]] = {
    "A": {"subjects": ["a.>"]},
    "W": {"subjects": ["w.>"], "retention": "workqueue"},
    "I": {"subjects": ["i.>"], "retention": "interest"},
    "K": {
        "subjects": ["k.>"],
        "consumer_limits": {"inactive_threshold": 10 * samples.S, "max_ack_pending": 50},
    },
    "X": {"subjects": ["x.>"], "max_consumers": 1},
}


class Ask(NamedTuple):
    """One request for a consumer: the parts of its subject, and its body."""

    stream: str
    form: str
    name: str
    filter_subject: str
    body: bytes

    def operation(self) -> str:
        verb = "CONSUMER.DURABLE.CREATE" if self.form == consumers.DURABLE else "CONSUMER.CREATE"
        return ".".join(part for part in (verb, self.stream, self.name, self.filter_subject) if part)


def _ask(rng: random.Random, stream: str, config: samples.Body) -> Ask:
    body: dict[str, Any] = {"stream_name": stream if rng.random() > 0.02 else "zz", "config": config}
    if rng.random() < 0.3:
        body["action"] = rng.choice(["", "create", "update"])
    if rng.random() < 0.25:
        body["pedantic"] = True
    form = rng.choice([consumers.NAMED] * 6 + [consumers.EPHEMERAL, consumers.DURABLE])
    name = "" if form == consumers.EPHEMERAL else str(config.get("durable_name") or rng.choice("CD"))
    filtered = ""
    if form == consumers.NAMED and rng.random() < 0.15:
        filtered = str(config.get("filter_subject") or "a.1").replace("..", ".")
    return Ask(stream, form, name.replace(" ", "\\"), filtered, encode(body))


def judged_consumer(
    ask: Ask, stream: configs.StreamConfig, others: dict[str, configs.ConsumerConfig]
) -> tuple[Judgement, configs.ConsumerConfig | None]:
    try:
        request = decode.decode(requests.ConsumerRequest, ask.body)
        config = consumers.resolve_name(
            request, stream=ask.stream, form=ask.form, name=ask.name, filter_subject=ask.filter_subject
        )
        config = consumers.merge_existing(config, stream, others, "random")
        made = consumers.validate(config, stream, others, action=request.action, strict=request.pedantic)
    except RequestError as error:
        return refused(error), None
    return accepted(made), made


def _becomes_durable(made: configs.ConsumerConfig | None, others: dict[str, configs.ConsumerConfig]) -> bool:
    """A deliberate difference: in nats-server, an ephemeral consumer made durable keeps its inactive threshold."""
    old = others.get(made.name) if made is not None else None
    return old is not None and made is not None and bool(made.durable_name) and not old.durable_name


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_consumers_are_judged_as_nats_server_judges_them(nats_server: Client, seed: int) -> None:
    rng = random.Random(seed)
    parents = {}
    for name, body in PARENTS.items():
        nats_server.api(f"STREAM.DELETE.{name}")
        nats_server.api(f"STREAM.CREATE.{name}", body | {"name": name})
        parents[name] = streams.validate_create(
            decode.decode_stream(encode(body | {"name": name}))[0], name, {}
        )
    for number in range(CONSUMERS):
        stream = rng.choice([*PARENTS, "A", "W"])
        others: dict[str, configs.ConsumerConfig] = {}
        config = samples.consumer(rng)
        for _ in range(rng.choice([1, 1, 2, 3])):
            ask = _ask(rng, stream, config)
            expected, answer = theirs(nats_server, ask.operation(), ask.body, b',"delivered":{')
            judgement, made = judged_consumer(ask, parents[stream], others)
            if not _becomes_durable(made, others):
                place = f"seed {seed}, number {number}"
                assert judgement == expected, f"{place}: {ask.operation()} {ask.body[:2000]!r}"
            if made is not None:
                others[answer["name"]] = made
            config = samples.vary(rng, config, samples.CONSUMER_FIELDS, rng.choice([0, 0, 1, 1, 2]))
        for name in others:
            nats_server.api(f"CONSUMER.DELETE.{stream}.{name}")
