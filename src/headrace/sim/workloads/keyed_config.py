"""What a simulation of a keyed consumer runs with: the stream, the consumer, its workers, and what may happen."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from headrace.protocol import subjects
from headrace.sim.clock import SECOND_NS

STREAM, CONSUMER, OTHER, DEAD_LETTERS = "S", "C", "O", "DLQ"
DEAD_SUBJECT = "dlq.s"
PUSH_SUBJECT = "push.here"
GROUP = "g"
_SUBJECTS = ("k.a.1", "k.a.2", "k.b.1", "k.b.2", "k.c", "x.a.1")


@dataclass(frozen=True)
class KeyedOptions:
    """The options of one seed."""

    stream: dict[str, Any]
    consumer: dict[str, Any]
    subjects: tuple[str, ...]
    events: int
    workers: int
    steps_max: int
    crash_share: float
    has_other_consumer: bool
    dead_letters: dict[str, Any]  # the configuration of their stream
    failure_share: float  # of messages that workers do not acknowledge
    actions: tuple[str, ...]

    @property
    def has_limits(self) -> bool:
        """Whether the stream removes messages by itself."""
        return bool({"max_msgs", "max_age", "max_msgs_per_subject"} & self.stream.keys())


def find_key(config: dict[str, Any], subject: str) -> str | None:
    """Return the key of a subject for a consumer; None if its filter does not match."""
    pattern = config.get("filter_subject", "")
    if pattern and not subjects.matches(pattern.encode(), subject.encode()):
        return None
    tokens = subject.split(".")
    positions = [int(part) for part in config.get("key_tokens", "").split(",") if part]
    if not positions:
        return subject
    return ".".join(tokens[at - 1] if at <= len(tokens) else "" for at in positions)


def derive_keyed_options(seed: int, actions: tuple[str, ...]) -> KeyedOptions:
    """Return the options of a seed."""
    rng = Random(f"keyed options {seed}")
    retention = rng.choice(("limits", "limits", "workqueue", "interest"))
    essential = ("publish", "pull", "settle")
    return KeyedOptions(
        stream=_pick_stream(rng, retention),
        consumer=_pick_consumer(rng, retention),
        subjects=tuple(rng.sample(_SUBJECTS, rng.randrange(1, len(_SUBJECTS) + 1)))
        + rng.choice(((), (), tuple(f"k.{name}.9" for name in "defghijklmnop"))),
        events=rng.randrange(60, 240),
        workers=rng.randrange(1, 5),
        steps_max=rng.choice((2, 8, 30, 100)),
        crash_share=rng.choice((0.0, 0.02, 0.05)),
        dead_letters=_pick_dead_letters(rng),
        failure_share=rng.choice((0.0, 0.0, 0.7)),
        has_other_consumer=retention != "workqueue" and rng.random() < 0.4,
        actions=tuple(name for name in actions if rng.random() < 0.6) + essential * rng.choice((1, 4)),
    )


def _pick_stream(rng: Random, retention: str) -> dict[str, Any]:
    config: dict[str, Any] = {"name": STREAM, "subjects": ["k.>", "x.>"], "retention": retention}
    if rng.random() < 0.3:
        limit: dict[str, Any] = rng.choice(
            (
                {"max_msgs": rng.randrange(3, 20)},
                {"max_age": rng.randrange(2, 20) * SECOND_NS},
                {"max_msgs_per_subject": rng.randrange(1, 4)},
            )
        )
        config |= limit
    if rng.random() < 0.15:
        config["storage"] = "memory"
    return config


def _pick_consumer(rng: Random, retention: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "durable_name": CONSUMER,
        "ack_policy": "explicit",
        "ack_wait": rng.choice((1, 2, 5)) * SECOND_NS,
        "max_ack_pending_per_subject": rng.choice((1, 1, 1, 2, 3)),
        "max_ack_pending": rng.choice((1, 2, 4, 8, 1000)),
    }
    if rng.random() < 0.3:
        config["max_deliver"] = rng.randrange(1, 5)
    if rng.random() < 0.2:
        config["backoff"] = [SECOND_NS // 2, 2 * SECOND_NS][: config.get("max_deliver", 2)]
        config["ack_wait"] = config["backoff"][0]
    if rng.random() < 0.3:
        config["filter_subject"] = rng.choice(("k.>", "k.*.1", "k.a.>"))
    if rng.random() < 0.3:
        config["key_tokens"] = rng.choice(("2", "3", "1,2"))
    if retention != "workqueue" and rng.random() < 0.3:
        config |= _pick_start(rng, config)
    if rng.random() < 0.2:
        config["deliver_subject"] = PUSH_SUBJECT
    elif rng.random() < 0.3:
        policy = rng.choice(("overflow", "pinned_client", "prioritized"))
        config |= {"priority_policy": policy, "priority_groups": [GROUP]}
        if policy == "pinned_client":
            config["priority_timeout"] = 2 * SECOND_NS
    if rng.random() < 0.1:
        config["headers_only"] = True
    if rng.random() < 0.7:
        on = rng.choice((["max_deliver"], ["term"], ["max_deliver", "term"]))
        config["dead_letter"] = {"subject": DEAD_SUBJECT, "on": on}
        if "max_deliver" in on and "backoff" not in config:
            config["max_deliver"] = rng.randrange(1, 4)
    return config


def _pick_dead_letters(rng: Random) -> dict[str, Any]:
    config: dict[str, Any] = {"name": DEAD_LETTERS, "subjects": ["dlq.>"]}
    if rng.random() < 0.2:  # it is full sometimes
        config |= {"max_msgs": rng.randrange(1, 5), "discard": "new"}
    return config


def _pick_start(rng: Random, config: dict[str, Any]) -> dict[str, Any]:
    if "key_tokens" in config or rng.random() < 0.5:
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": rng.randrange(1, 8)}
    return {"deliver_policy": "last_per_subject", "filter_subject": config.get("filter_subject", ">")}
