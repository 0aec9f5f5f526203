"""What the compiled kernel holds is seen by the garbage collector: a broker that is let go leaves nothing behind."""

import gc

import pytest

from support.twins import TWINS, Desk


@pytest.mark.parametrize("twin", TWINS)
def test_a_hub_that_is_let_go_takes_its_sessions_and_routes_along(twin: str) -> None:
    def alive() -> int:
        gc.collect()
        return sum(type(each).__name__ in ("Session", "Route", "Hub") for each in gc.get_objects())

    before = alive()
    desk = Desk(twin)
    listener = desk.client()
    listener.say(b"SUB > 1\r\n")
    desk.client().say(b"PUB a 1\r\nx\r\nPING\r\n")
    assert alive() > before
    del desk, listener
    assert alive() == before
