"""Calls of a turn queue share a limited time in each turn, and keep their order."""

from __future__ import annotations

import asyncio
from time import perf_counter

import pytest

from headrace.net import turn_queue
from headrace.net.turn_queue import SLICE_S, TurnQueue


def burn() -> None:
    """Use more time than a turn has."""
    end_s = perf_counter() + SLICE_S
    while perf_counter() < end_s:
        pass


async def test_a_call_is_made_at_once_while_the_turn_has_time() -> None:
    queue, made = TurnQueue(asyncio.get_running_loop()), list[int]()
    queue.run(lambda: made.append(1))
    assert made == [1]


async def test_others_are_served_between_long_calls_and_the_order_is_kept() -> None:
    loop = asyncio.get_running_loop()
    queue, made = TurnQueue(loop), list[int | str]()

    def call(number: int) -> None:
        made.append(number)
        burn()

    for number in range(3):
        queue.run(lambda number=number: call(number))
    assert made == [0]
    while len(queue):
        made.append("others")
        await asyncio.sleep(0)
    assert [each for each in made if each != "others"] == [0, 1, 2]
    assert made.index(2) > made.index("others", made.index(1))


async def test_the_next_turn_has_time_again() -> None:
    queue, made = TurnQueue(asyncio.get_running_loop()), list[int]()
    queue.run(burn)
    await asyncio.sleep(0)
    queue.run(lambda: made.append(1))
    assert made == [1]


async def test_a_call_that_fails_does_not_stop_the_others() -> None:
    loop = asyncio.get_running_loop()
    errors = list[object]()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    queue, made = TurnQueue(loop), list[int]()
    queue.add(lambda: made.append(1 // 0))
    queue.add(lambda: made.append(2))
    while len(queue):
        await asyncio.sleep(0)
    assert made == [2]
    assert isinstance(errors[0], ZeroDivisionError)


async def test_a_turn_is_over_after_a_while_and_the_next_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_queue, "TURN_S", SLICE_S)
    queue = TurnQueue(asyncio.get_running_loop())
    assert not queue.is_turn_over()
    burn()
    assert queue.is_turn_over()
    await asyncio.sleep(0)
    assert not queue.is_turn_over()
