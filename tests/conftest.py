"""What a whole run tells at its end: figures that single tests counted, such as crash points."""

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Adds up what tests recorded under `count: ...`."""
    counted: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in report.user_properties:
            if name.startswith("count: ") and report.when == "call":
                counted[name.removeprefix("count: ")] += value
    for name, value in counted.items():
        terminalreporter.write_line(f"{value:,} {name}")
