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


def pytest_configure(config: pytest.Config) -> None:
    """Import the package under test as it is: it brings a plugin, so pytest would rewrite the assertions of all its
    modules, and parsing at odd moments trips over a defect of CPython 3.11 (AST recursion depth mismatch)."""
    hook = getattr(config.pluginmanager, "rewrite_hook", None)
    if hook is not None:
        hook._must_rewrite = {name for name in hook._must_rewrite if not name.startswith("headrace")}
        hook._marked_for_rewrite_cache.clear()
