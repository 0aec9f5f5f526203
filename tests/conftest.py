"""Summary of a test run: counts that single tests recorded, such as crash points."""

import os
import signal
from collections import Counter

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

# A pause of the machine is not an error of the example.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

#: Whether tests of clients and claims run on a cluster (`make test-cluster`), and how often one that fails there is run.
IS_CLUSTER = os.environ.get("HEADRACE_TARGET") == "cluster"
CLUSTER_ATTEMPTS = 3


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
    """Import the package without rewriting its assertions, and handle the signals that were ignored at the start.

    The package has a pytest plugin, so pytest would rewrite the assertions of all its modules. That parses sources at
    arbitrary moments, which triggers a bug in CPython 3.11 (AST recursion depth mismatch).
    """
    _handle_ignored_signals()
    hook = getattr(config.pluginmanager, "rewrite_hook", None)
    if hook is not None:
        hook._must_rewrite = {name for name in hook._must_rewrite if not name.startswith("headrace")}
        hook._marked_for_rewrite_cache.clear()


def _handle_ignored_signals() -> None:
    """Let child processes have the default action of signals that were ignored at the start, as after `nohup ... &`.

    A child inherits that a signal is ignored, but not that it has a handler. SIGHUP and SIGQUIT still do not end this
    process.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGQUIT"):  # not on Windows
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add group names to the ids of tests for `--dist loadgroup`.

    pytest-xdist 3.8 writes them there itself, but not with pytest 9.2 or later, which stores ids in another form.
    Without this nothing is grouped. On a cluster of nats-servers, leave out what it does differently.
    """
    if IS_CLUSTER:
        items[:] = [item for item in items if not item.get_closest_marker("single_server")]
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group") if mark.args})
        end = f"@{'_'.join(groups)}"
        if groups and not item.nodeid.endswith(end) and hasattr(item, "_id"):
            item._id = type(item._id).parse(item.nodeid + end)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a test that fails on a cluster: nodes answer from copies that may lag, and interest takes time to spread."""
    if not IS_CLUSTER:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempt in range(CLUSTER_ATTEMPTS):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if attempt == CLUSTER_ATTEMPTS - 1 or not any(each.failed for each in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
