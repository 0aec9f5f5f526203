"""Thousands of stream and consumer configurations, valid and invalid, to compare how servers validate them.

Values are drawn from pools that contain every boundary of a rule. Deliberate differences are left out: the flag for
TTLs, and counters together with delete markers.
"""

from __future__ import annotations

import random
from typing import Any

Body = dict[str, Any]

S = 1_000_000_000

TRANSFORMS: list[Body] = [
    {"src": "o.>", "dest": "x.>"},
    {"src": "o.*", "dest": "x.$1"},
    {"src": "o.*", "dest": "x.$2"},
    {"src": "o..1", "dest": "x"},
    {"src": "o.1", "dest": "x.>"},
    {"src": "", "dest": ""},
    {"src": "o.*.*", "dest": "x.{{wildcard(2)}}.{{partition(3,1)}}"},
    {"src": "o.*", "dest": "x.{{foo(1)}}"},
    {"src": "o.*", "dest": "x.{{left(1,2)}}.{{right(1,2)}}"},
    {"src": "o.*", "dest": "x.{{split(1,-)}}"},
    {"src": "o.*", "dest": "x.{{split(1)}}"},
    {"src": "o.*", "dest": "{{slicefromleft(1,a)}}"},
    {"src": "o.*", "dest": "x y"},
    {"src": "o.*", "dest": "x.."},
    {"src": "q.*", "dest": "x.>.a"},
    {"src": "a", "dest": "b.{{partition(4)}}"},
    {"src": "a", "dest": "b.$1"},
    {"src": "o.*", "dest": "x.{{random(5)}}"},
    {"src": "o.*", "dest": "x.{{wildcard()}}"},
    {"src": "o.*", "dest": "x.{{wildcard(1,2)}}"},
    {"src": "", "dest": "z.>"},
    {"src": "o.7", "dest": ""},
    {"dest": "b"},
    {"src": "o.*", "dest": "b.*"},
    {"src": "o.*", "dest": "x.{{ SplitFromLeft( 1 , 2 ) }}"},
    {"src": "o.*", "dest": "x.{{partition(99999999999,1)}}"},
    {"src": "o.*", "dest": "x.{{random(1,2)}}"},
    {"src": "o.*", "dest": "$x.{{splitfromright(1,2)}}.$"},
]
EXTERNALS = [
    {"api": "$JS.LEAF.API", "deliver": ""},
    {"api": "$JS.API", "deliver": ""},
    {"api": "$JS.*.API", "deliver": "x"},
    {"api": "", "deliver": "d.*"},
    {"api": "foo", "deliver": "o"},
    {"api": "a b", "deliver": "d"},
]
SOURCE_CONSUMERS = [
    {"name": "d", "deliver_subject": "dd"},
    {"name": "d"},
    {"name": "d.e", "deliver_subject": "dd"},
    {"name": "d", "deliver_subject": "dd.*"},
    {"name": "e", "deliver_subject": "dd"},
    {},
]
METADATA: list[Body] = [
    {},
    {"a": "b", "_nats.level": "9", "_nats.req.level": "7", "_nats.ver": "x"},
    {"z": "1", "a": "2"},
    {"k": "v" * 131_072},
    {"k": "v" * 131_055},
    {"k": "v" * 131_056},
]

STREAM_FIELDS: dict[str, list[Any]] = {
    "description": ["", "x", "<&>", "d" * 4096, "d" * 4097],
    "subjects": [
        [],
        ["q"],
        ["q.>"],
        ["q.*", "q.a"],
        ["q.a", "q.a"],
        [">"],
        ["$JS.API.x"],
        ["$JS.EVENT.ADVISORY.>"],
        ["$SYS.x"],
        ["$SYS.ACCOUNT.x"],
        ["$JSC.a"],
        ["a b"],
        ["q..a"],
        [""],
        ["o.1"],
        ["x.*", "q.>", "*.y"],
        ["*.a"],
        ["q.>", '"z'],
    ],
    "retention": ["limits", "interest", "workqueue"],
    "max_consumers": [-5, -1, 0, 3],
    "max_msgs": [-2, -1, 0, 10],
    "max_bytes": [-2, 0, 1000],
    "max_age": [-1, 0, 1, S // 10 - 1, S // 10, 5 * S, 3600 * S],
    "max_msgs_per_subject": [-3, -1, 0, 1, 5],
    "max_msg_size": [-2, -1, 0, 10, 1000],
    "discard": ["old", "new"],
    "storage": ["file", "memory"],
    "num_replicas": [-1, 0, 1, 1, 1, 1, 2, 3, 6],
    "no_ack": [True, False],
    "duplicate_window": [-1, 0, 1, S // 10 - 1, S // 10, 2 * S, 120 * S, 4000 * S],
    "placement": [{}, {"cluster": "c"}, {"tags": ["a"]}, {"preferred": "x"}],
    "compression": ["none", "s2"],
    "first_seq": [0, 1, 100],
    "republish": [
        {"src": "", "dest": "rp.>"},
        {"src": ">", "dest": "rp.>"},
        {"src": "q.>", "dest": "rp.>", "headers_only": True},
        {"dest": "q.x"},
        {"src": "a.*", "dest": "b.$1"},
        {"src": "a", "dest": "b.>"},
        {"src": ">", "dest": ">"},
        {"src": "q.*", "dest": "b.{{left(1,2)}}"},
        {"dest": "b"},
    ],
    "allow_direct": [True, False],
    "mirror_direct": [True, False, False],
    "discard_new_per_subject": [True, False],
    "sealed": [True, False, False, False],
    "deny_delete": [True, False],
    "deny_purge": [True, False],
    "allow_rollup_hdrs": [True, False],
    "consumer_limits": [
        {},
        {"inactive_threshold": 5 * S},
        {"max_ack_pending": 5},
        {"inactive_threshold": -5},
    ],
    "allow_msg_ttl": [True, False],
    "subject_delete_marker_ttl": [-1, 0, 1, S - 1, S, 3_700_000_000],
    "allow_msg_counter": [True, False, False],
    "allow_atomic": [True, False],
    "allow_batched": [True, False],
    "allow_msg_schedules": [True, False, False],
    "persist_mode": ["default", "async", ""],
    "metadata": METADATA,
}

CONSUMER_FIELDS: dict[str, list[Any]] = {
    "description": ["", "x", "d" * 4096, "d" * 4097],
    "deliver_policy": [
        "all",
        "last",
        "new",
        "by_start_sequence",
        "by_start_time",
        "last_per_subject",
        "undefined",
    ],
    "opt_start_seq": [0, 5],
    "opt_start_time": ["2020-01-01T00:00:00Z", "2020-01-01T02:00:00+02:00", "2021-01-01T00:00:00.1Z"],
    "ack_policy": ["none", "all", "explicit", "explicit", "explicit", "flow_control"],
    "ack_wait": [-1, 0, 1, 5 * S],
    "max_deliver": [-5, -1, 0, 1, 2, 5],
    "backoff": [[S], [S, 2 * S], [-1], [S, 2 * S, 3 * S]],
    "filter_subject": ["", "a.1", "w.1", "a..b", "zz", "w.>", ">"],
    "filter_subjects": [
        ["a.1"],
        ["w.1", "w.2"],
        ["w.*", "w.1"],
        [""],
        ["a..b"],
        ["a.1", "a.2"],
        ["a.1", ""],
    ],
    "replay_policy": ["instant", "original"],
    "rate_limit_bps": [0, 1000],
    "sample_freq": ["", "50", "100%", "abc", "-5", "-5%", "99999999999999999999", "%"],
    "max_waiting": [-1, 0, 10],
    "max_ack_pending": [-5, -1, 0, 10, 60, 5000],
    "flow_control": [True, False],
    "headers_only": [True, False],
    "max_batch": [-1, 0, 10],
    "max_expires": [-1, 0, 1, 999_999, 1_000_000, S],
    "max_bytes": [-1, 0, 100],
    "deliver_subject": ["d", "d", "d", "d.*", "d..x", "a.1", "w.5", "d e", ""],
    "deliver_group": ["", "g"],
    "idle_heartbeat": [-1, 0, 1, S // 10 - 1, S // 10, S],
    "inactive_threshold": [-1, 0, 5 * S, 20 * S],
    "num_replicas": [-1, 0, 1, 1, 2],
    "mem_storage": [True, False],
    "direct": [True, False, False, False],
    "metadata": METADATA,
    "pause_until": ["2030-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "2030-01-01T00:00:00+01:00"],
    "priority_groups": [["g"], [""], ["a b"], ["a" * 17], ["g", "h"]],
    "priority_policy": ["none", "overflow", "pinned_client", "prioritized"],
    "priority_timeout": [-1, 0, S],
}


def vary(rng: random.Random, body: Body, fields: dict[str, list[Any]], count: int) -> Body:
    """Draw `count` fields again."""
    return body | {name: rng.choice(fields[name]) for name in rng.sample(sorted(fields), count)}


def source(rng: random.Random) -> Body:
    """Return a mirror or a source: of streams O, P, M that exist, of the stream Q itself, or of none."""
    body: Body = {"name": rng.choice(["O", "O", "P", "Q", "Z", "bad.name", "", "M"])}
    if rng.random() < 0.3:
        body["opt_start_seq"] = rng.choice([0, 5])
    if rng.random() < 0.2:
        body["opt_start_time"] = rng.choice(["2020-01-01T00:00:00Z", "2020-01-01T00:00:00.500+02:00"])
    if rng.random() < 0.4:
        body["filter_subject"] = rng.choice(["o.1", "o..1", "o.>", "zz", "", "Q", "q.*"])
    if rng.random() < 0.3:
        body["subject_transforms"] = rng.choices(TRANSFORMS, k=rng.choice([1, 1, 2]))
    if rng.random() < 0.25:
        body["external"] = rng.choice(EXTERNALS)
    if rng.random() < 0.25:
        body["consumer"] = rng.choice(SOURCE_CONSUMERS)
    return body


def stream(rng: random.Random) -> Body:
    """Return a configuration of stream Q."""
    body = vary(rng, {"name": "Q"}, STREAM_FIELDS, rng.choice([0, 1, 1, 2, 2, 3, 4, 6]))
    dice = rng.random()
    if dice < 0.18:
        body["mirror"] = source(rng)
        if rng.random() < 0.7:
            body = {name: value for name, value in body.items() if name not in ("subjects", "first_seq")}
    if 0.15 < dice < 0.38:
        body["sources"] = [source(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
    if rng.random() < 0.12:
        body["subject_transform"] = rng.choice(TRANSFORMS)
    if rng.random() < 0.3:
        body["pedantic"] = True
    if rng.random() < 0.02:
        body["name"] = rng.choice(["R", "a b", "", "a/b"])
    return body


def comparable(body: Body) -> bool:
    """Return whether both servers should validate a stream in the same way."""
    return not (body.get("allow_msg_counter") and body.get("subject_delete_marker_ttl", 0) > 0)


def changed_stream(rng: random.Random, base: Body) -> Body:
    """Return an update of a stream."""
    body = vary(
        rng, base if rng.random() < 0.6 else {"name": "Q"}, STREAM_FIELDS, rng.choice([0, 1, 1, 2, 3])
    )
    if rng.random() < 0.1:
        body.pop("mirror", None)
    if rng.random() < 0.1:
        body["mirror"] = source(rng)
    if rng.random() < 0.2:
        body["sources"] = [source(rng)]
    if rng.random() < 0.2:
        body["pedantic"] = True
    return body


def consumer(rng: random.Random) -> Body:
    body = vary(rng, {}, CONSUMER_FIELDS, rng.choice([0, 1, 1, 1, 2, 3]))
    if rng.random() < 0.5:
        body["ack_policy"] = "explicit"
    if rng.random() < 0.3:
        body["deliver_subject"] = "d"
    if rng.random() < 0.5:
        body["durable_name"] = rng.choice(["C"] * 9 + ["D", "n" * 256, "p/q", "a b"])
    if rng.random() < 0.2:
        body["name"] = rng.choice(["C", "D", "E", "a.b", "x/y"])
    return body
