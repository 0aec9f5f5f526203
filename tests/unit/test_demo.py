"""The demo does what it says."""

import pytest

from headrace import demo


def test_every_step_shows_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--exit"]) == 0
    shown = capsys.readouterr().out
    for step in demo.STEPS:
        assert step.title in shown


async def test_a_step_that_fails_is_reported() -> None:
    async def act(server: object) -> str:
        raise AssertionError("not today")

    outcome = await demo.run_step(demo.Step("t", "s", act), None)  # type: ignore[arg-type]
    assert outcome.status == "failed"
    assert "not today" in outcome.message
