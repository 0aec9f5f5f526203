"""The garbage collector sees what the compiled core holds: a broker that is dropped leaves nothing behind."""

import gc

import pytest

from support.native_and_pure import TWINS, Desk


@pytest.mark.parametrize("twin", TWINS)
def test_a_hub_that_is_let_go_takes_its_sessions_and_routes_along(twin: str) -> None:
    def alive() -> list[object]:
        gc.collect()
        return [
            each for each in gc.get_objects() if type(each).__name__ in ("Session", "Route", "SubjectRouter")
        ]

    others = alive()  # of earlier tests; kept alive, so that only objects of this test are counted
    known = {id(each) for each in others}

    def ours() -> int:
        return sum(id(each) not in known for each in alive())

    desk = Desk(twin)
    listener = desk.client()
    listener.say(b"SUB > 1\r\n")
    desk.client().say(b"PUB a 1\r\nx\r\nPING\r\n")
    assert ours() > 0
    del desk, listener
    assert ours() == 0
