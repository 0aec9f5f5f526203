"""What a whole run tells at its end: figures that single tests counted, such as crash points."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# A machine that halts for a moment is no defect of what an example tries.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group names reach the scheduler as the end of a test's id, where pytest-xdist 3.8 can no longer write them: since
    version 9.2 pytest keeps ids in another form. Without this `--dist loadgroup` groups nothing."""
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group") if mark.args})
        end = f"@{'_'.join(groups)}"
        if groups and not item.nodeid.endswith(end) and hasattr(item, "_id"):
            item._id = type(item._id).parse(item.nodeid + end)
