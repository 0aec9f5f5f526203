"""No request costs more than in proportion to the data: with 8 times as much it takes less than 16 times as long.

Measured in CPU time of this process, as the best of several tries, so that a busy machine does not matter.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import process_time
from typing import Any

import pytest

from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

SMALL, FACTOR, GROWTH_MAX, TRIES = 1_000, 8, 16, 3
#: Below this a call is too short to be measured.
FLOOR_S = 0.001

#: Prepares data of a size, and returns the call that is measured.
Operation = Callable[[SimBroker, int], Callable[[], None]]


def ask(broker: SimBroker, endpoint: str, **body: Any) -> Any:
    answer = broker.call(endpoint, **body)
    assert "error" not in answer, answer
    return answer


def create(broker: SimBroker, name: str = "S", **config: Any) -> None:
    ask(broker, f"STREAM.CREATE.{name}", name=name, **{"subjects": [f"{name}.>"], **config})


def fill(broker: SimBroker, count: int, subjects: int) -> None:
    for number in range(count):
        broker.publish(f"S.{number % subjects}", b"x")
    broker.run_until_idle()


def update(config: dict[str, Any]) -> Operation:
    def prepare(broker: SimBroker, size: int) -> Callable[[], None]:
        create(broker)
        fill(broker, size, size // 4)
        shown = {name: value(size) if callable(value) else value for name, value in config.items()}
        return lambda: settle(broker, "STREAM.UPDATE.S", name="S", subjects=["S.>"], **shown)

    return prepare


def settle(broker: SimBroker, endpoint: str, **body: Any) -> None:
    ask(broker, endpoint, **body)
    broker.run_until_idle()


def request(endpoint: str, removed: bool = False, **body: Any) -> Operation:
    """Return a request to a stream of messages, of which every second one was removed if `removed`."""

    def prepare(broker: SimBroker, size: int) -> Callable[[], None]:
        create(broker)
        if removed:
            fill(broker, size, 2)
            settle(broker, "STREAM.PURGE.S", filter="S.1")
        else:
            fill(broker, size, size // 2)
        return lambda: settle(broker, endpoint, **body)

    return prepare


def with_consumers(endpoint: str) -> Operation:
    def prepare(broker: SimBroker, size: int) -> Callable[[], None]:
        create(broker, retention="interest")
        for number in range(size // 20):
            config = {"durable_name": f"c{number}", "ack_policy": "explicit", "filter_subject": f"S.{number}"}
            ask(broker, f"CONSUMER.DURABLE.CREATE.S.c{number}", stream_name="S", config=config)
        fill(broker, size, size // 20)
        return lambda: settle(broker, endpoint)

    return prepare


def delete_consumers(broker: SimBroker, size: int) -> Callable[[], None]:
    with_consumers("")(broker, size)
    return lambda: [settle(broker, f"CONSUMER.DELETE.S.c{number}") for number in range(size // 20)].clear()


def lists(endpoint: str) -> Operation:
    def prepare(broker: SimBroker, size: int) -> Callable[[], None]:
        for number in range(size // 20):
            create(broker, f"L{number}", storage="memory")
        return lambda: settle(broker, endpoint)

    return prepare


def create_streams(broker: SimBroker, size: int) -> Callable[[], None]:
    """Each new stream is compared with those that exist."""

    def create_all() -> None:
        for number in range(size // 4):
            create(broker, f"L{number}", storage="memory", max_bytes=1_000)

    return create_all


def work_queue_consumers(broker: SimBroker, size: int) -> Callable[[], None]:
    """The next consumer of a work queue is compared with those that exist."""
    create(broker, retention="workqueue")

    def add(number: int) -> None:
        config = {"durable_name": f"c{number}", "ack_policy": "explicit", "filter_subject": f"S.{number}"}
        ask(broker, f"CONSUMER.DURABLE.CREATE.S.c{number}", stream_name="S", config=config)

    for number in range(size // 20):
        add(number)
    return lambda: add(size)


def many_subjects(broker: SimBroker, size: int) -> Callable[[], None]:
    return lambda: create(broker, subjects=[f"S.{number}.*" for number in range(size // 4)])


def many_filters(broker: SimBroker, size: int) -> Callable[[], None]:
    create(broker)
    fill(broker, size, size // 4)
    filters = [f"S.{number}" for number in range(size // 4)]
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subjects": filters}
    return lambda: settle(broker, "CONSUMER.DURABLE.CREATE.S.c", stream_name="S", config=config)


def many_transforms(broker: SimBroker, size: int) -> Callable[[], None]:
    """Only the rules grow: each copy has the names of all of them in a header, as in nats-server."""
    copies = 100
    create(broker)
    fill(broker, copies, copies)
    transforms = [{"src": f"S.{number}", "dest": f"COPY.{number}"} for number in range(size // 4)]
    source = {"name": "S", "subject_transforms": transforms}

    def copy() -> None:
        ask(broker, "STREAM.CREATE.COPY", name="COPY", sources=[source])
        while ask(broker, "STREAM.INFO.COPY")["state"]["messages"] < copies:
            broker.advance(10_000_000)

    return copy


LAST_PER_SUBJECT = {
    "stream_name": "S",
    "config": {
        "durable_name": "c",
        "ack_policy": "explicit",
        "deliver_policy": "last_per_subject",
        "filter_subject": "S.>",
    },
}
OPERATIONS: dict[str, Operation] = {
    "fewer messages": update({"max_msgs": lambda size: size // 2}),
    "fewer bytes": update({"max_bytes": lambda size: 20 * size}),
    "fewer per subject": update({"max_msgs_per_subject": 1}),
    "purge by filter": request("STREAM.PURGE.S", filter="S.*"),
    "purge and keep": request("STREAM.PURGE.S", keep=100),
    "info with subjects": request("STREAM.INFO.S", subjects_filter=">"),
    "info with deleted": request("STREAM.INFO.S", removed=True, deleted_details=True),
    "last per subject": request("CONSUMER.DURABLE.CREATE.S.c", **LAST_PER_SUBJECT),
    "delete a stream": with_consumers("STREAM.DELETE.S"),
    "list consumers": with_consumers("CONSUMER.LIST.S"),
    "purge with consumers": with_consumers("STREAM.PURGE.S"),
    "delete consumers": delete_consumers,
    "list streams": lists("STREAM.LIST"),
    "names of streams": lists("STREAM.NAMES"),
    "create streams": create_streams,
    "add a consumer to a work queue": work_queue_consumers,
    "many subjects": many_subjects,
    "many filters": many_filters,
    "many transforms": many_transforms,
}


def measure_s(operation: Operation, size: int) -> float:
    """Return the CPU time of one call, on a new broker."""
    broker = SimBroker(SimDisk(), StoreOptions())
    broker.start()
    call = operation(broker, size)
    gc.collect()
    gc.disable()
    try:
        started_s = process_time()
        call()
        return process_time() - started_s
    finally:
        gc.enable()


@pytest.mark.parametrize("name", OPERATIONS)
def test_eight_times_the_data_takes_less_than_sixteen_times_as_long(name: str) -> None:
    operation = OPERATIONS[name]
    small_s = max(min(measure_s(operation, SMALL) for _ in range(TRIES)), FLOOR_S)
    large_s = float("inf")
    for _ in range(TRIES):
        large_s = min(large_s, measure_s(operation, SMALL * FACTOR))
        if large_s < GROWTH_MAX * small_s:
            return
    pytest.fail(f"{small_s * 1e3:.1f} ms with {SMALL}, {large_s * 1e3:.1f} ms with {SMALL * FACTOR} messages")
