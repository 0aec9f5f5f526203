"""Summary of a test run: counts that single tests recorded, such as crash points."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# A pause of the machine is not an error of the example.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the sums of what tests recorded under `count: ...`."""
    counted: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in report.user_properties:
            if name.startswith("count: ") and report.when == "call":
                counted[name.removeprefix("count: ")] += value
    for name, value in counted.items():
        terminalreporter.write_line(f"{value:,} {name}")


def pytest_configure(config: pytest.Config) -> None:
    """Import the package without rewriting its assertions.

    The package has a pytest plugin, so pytest would rewrite the assertions of all its modules. That parses sources at
    arbitrary moments, which triggers a bug in CPython 3.11 (AST recursion depth mismatch).
    """
    hook = getattr(config.pluginmanager, "rewrite_hook", None)
    if hook is not None:
        hook._must_rewrite = {name for name in hook._must_rewrite if not name.startswith("headrace")}
        hook._marked_for_rewrite_cache.clear()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add group names to the ids of tests for `--dist loadgroup`.

    pytest-xdist 3.8 writes them there itself, but not with pytest 9.2 or later, which stores ids in another form.
    Without this nothing is grouped.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group") if mark.args})
        end = f"@{'_'.join(groups)}"
        if groups and not item.nodeid.endswith(end) and hasattr(item, "_id"):
            item._id = type(item._id).parse(item.nodeid + end)
