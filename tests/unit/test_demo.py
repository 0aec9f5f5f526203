"""The demo without Spark, which needs Java: `tests/spark/test_demo.py` runs all of it."""

import contextlib
import os
from pathlib import Path

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
    shown, warnings = capsys.readouterr()
    assert warnings == ""
    for step in demo.STEPS:
        assert step.title in shown


async def test_a_step_that_fails_is_reported() -> None:
    async def act(server: object) -> str:
        raise AssertionError("not today")

    outcome = await demo.run_step(demo.Step("t", "s", act), None)  # type: ignore[arg-type]
    assert outcome.status == "failed"
    assert "not today" in outcome.message


@pytest.mark.parametrize(
    ("java", "expected"),
    [
        ("", "java is not on the PATH"),
        ("echo 'openjdk version \"11.0.2\" 2019' >&2", 'openjdk version "11.0.2"'),
        ("echo 'Unable to locate a Java Runtime.' >&2; exit 1", "Unable to locate a Java Runtime"),  # macOS
    ],
    ids=["no Java", "old Java", "placeholder"],
)
async def test_without_java_the_spark_step_is_skipped_and_says_how_to_get_it(
    java: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if java:
        (tmp_path / "java").write_text(f"#!/bin/sh\n{java}\n")
        (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = await demo.run_step(spark_steps.STEPS[0], None)  # type: ignore[arg-type]
    assert outcome.status == "skipped"
    assert expected in outcome.message
    assert "apt-get install default-jre-headless" in outcome.message


def test_the_log_of_spark_is_shown_only_after_a_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with spark_steps._redirect_stderr(tmp_path / "log"):
        os.write(2, b"WARN harmless\n")
    assert capfd.readouterr().err == ""
    with contextlib.suppress(RuntimeError), spark_steps._redirect_stderr(tmp_path / "log"):
        os.write(2, b"ERROR the reason\n")
        raise RuntimeError
    assert capfd.readouterr().err == "ERROR the reason\n"
