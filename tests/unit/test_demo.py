"""The demo without Spark, which needs Java: `tests/spark/test_demo.py` runs all of it."""

import pytest

from headrace import demo
from headrace.demo import spark_steps
from headrace.demo.steps import StepSkipped


async def skip_spark(context: demo.DemoContext) -> str:
    raise StepSkipped("no Spark here")


def test_every_step_shows_its_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = [demo.Step(step.title, step.description, skip_spark) for step in spark_steps.STEPS]
    others = [step for step in demo.STEPS if step not in spark_steps.STEPS]
    monkeypatch.setattr(demo, "STEPS", (*others, *skipped))
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
