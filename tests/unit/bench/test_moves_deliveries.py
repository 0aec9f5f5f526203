"""Which repeated deliveries the load run accepts."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "bench"
#: Sequence, delivery count, number of moves before it.
Deliveries = list[tuple[int, int, int]]


@pytest.fixture
def deliveries(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("moves.deliveries")


@pytest.mark.parametrize(
    ("received", "reasons"),
    [
        ([(7, 1, 0)], {}),
        ([(7, 1, 0), (7, 2, 0)], {"delivery count above 1": 1}),
        ([(7, 1, 0), (7, 1, 1)], {"above the ack floor after a move": 1}),
        (
            [(7, 1, 0), (7, 1, 1), (7, 2, 1)],
            {"above the ack floor after a move": 1, "delivery count above 1": 1},
        ),
    ],
)
def test_a_redelivery_has_a_reason(deliveries: Any, received: Deliveries, reasons: dict[str, int]) -> None:
    assert classify(deliveries, received) == (reasons, 0)


@pytest.mark.parametrize(
    "received",
    [
        [(7, 1, 0), (7, 1, 0)],  # the same server counts
        [(5, 1, 0), (5, 1, 1)],  # not above the ack floor
        [(7, 1, 0), (7, 1, 1), (7, 1, 1)],
    ],
)
def test_other_repeats_are_errors(deliveries: Any, received: Deliveries) -> None:
    assert classify(deliveries, received)[1] == 1


def classify(deliveries: Any, received: Deliveries) -> tuple[dict[str, int], int]:
    """Return the reasons and the number of errors; the ack floor of the only move is 5."""
    log = deliveries.DeliveryLog()
    for each in received:
        log.add("payload", deliveries.Delivery(*each))
    reasons, errors = log.classify([5])
    return dict(reasons), len(errors)
