"""The fixtures in pytest runs of their own: pytest-asyncio in both modes, anyio, xdist, and no plugin at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = "pytester"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # each starts Python and pytest up to four times

#: Two tests that would disturb each other in one account.
BODY = """
async def check(js, client):
    messages = await client.subscribe("s")
    await js.add_stream(name="S", subjects=["s"])
    await js.publish("s", b"1")
    assert (await messages.next_msg(60)).data == b"1"
    assert (await js.stream_info("S")).state.messages == 1
"""
TWO_TESTS = """
{marker}
async def test_one(headrace_js, headrace_client):
    await check(headrace_js, headrace_client)

{marker}
async def test_two(headrace_js, headrace_client):
    await check(headrace_js, headrace_client)
"""


def run(pytester: pytest.Pytester, code: str, *flags: str, ini: str = "") -> pytest.RunResult:
    """Run tests in another process, with nothing but the plugins that are named."""
    pytester.makepyfile(test_it=f"import asyncio\nimport pytest\n{BODY}\n{code}")
    unset = "ignore:The configuration option:pytest.PytestDeprecationWarning"
    pytester.makeini(f"[pytest]\nfilterwarnings =\n    error\n    {unset}\n{ini}")
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:timeout", *flags)


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Show what a run leaves behind."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))


def list_leftovers(tmp_path: Path) -> list[str]:
    return [name for name in os.listdir(tmp_path / "temporary") if name.startswith("headrace")]


def test_pytest_asyncio_in_strict_mode(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """The client must be in the loop of the test, wherever other fixtures are."""
    code = TWO_TESTS.format(marker="@pytest.mark.asyncio")
    shared = TWO_TESTS.format(marker='@pytest.mark.asyncio(loop_scope="session")').replace(
        "test_", "test_shared_"
    )
    ini = "asyncio_mode = strict\nasyncio_default_fixture_loop_scope = function"
    run(pytester, code + shared, ini=ini).assert_outcomes(passed=4)
    assert list_leftovers(tmp_path) == []


def test_pytest_asyncio_in_auto_mode(pytester: pytest.Pytester) -> None:
    ini = "asyncio_mode = auto\nasyncio_default_test_loop_scope = module"
    run(pytester, TWO_TESTS.format(marker=""), ini=ini).assert_outcomes(passed=2)


def test_anyio(pytester: pytest.Pytester, tmp_path: Path) -> None:
    pytest.importorskip("anyio", reason="needs anyio: run make setup")
    backend = "@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    code = backend + TWO_TESTS.format(marker="@pytest.mark.anyio")
    run(pytester, code, "-p", "no:asyncio").assert_outcomes(passed=2)
    run(pytester, code).assert_outcomes(passed=2)
    assert list_leftovers(tmp_path) == []


def test_xdist_workers_have_servers_of_their_own(pytester: pytest.Pytester, tmp_path: Path) -> None:
    code = """
@pytest.mark.parametrize("number", range(6))
@pytest.mark.asyncio
async def test_many(headrace_js, headrace_client, headrace_session, number, worker_id):
    await check(headrace_js, headrace_client)
    with open(f"ports-{worker_id}", "a") as file:
        print(headrace_session.port, file=file)
"""
    run(pytester, code, "-n", "2").assert_outcomes(passed=6)
    ports = [set(path.read_text().split()) for path in Path(pytester.path).glob("ports-*")]
    assert [len(each) for each in ports] == [1, 1], "one server for all tests of a worker"
    assert not ports[0] & ports[1]
    assert list_leftovers(tmp_path) == []


def test_without_a_plugin_the_failure_says_what_to_install(pytester: pytest.Pytester) -> None:
    code = "def test_it(headrace_client):\n    pass\n"
    result = run(pytester, code, "-p", "no:asyncio", "-p", "no:anyio")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*install pytest-asyncio or anyio*"])


def test_options_of_the_shared_server(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def headrace_session_options():\n"
        "    return {'max_payload': 2000, 'clock': 'virtual'}\n"
    )
    code = """
@pytest.mark.asyncio
async def test_it(headrace_client, headrace_session):
    assert headrace_client.max_payload == 2000
    await asyncio.to_thread(headrace_session.advance, "1h")

def test_several_accounts(headrace_account_factory):
    first, second = headrace_account_factory(), headrace_account_factory()
    assert first.name != second.name
    assert first.server is second.server
"""
    run(pytester, code).assert_outcomes(passed=2)


def test_an_interrupted_run_leaves_nothing_behind(pytester: pytest.Pytester, tmp_path: Path) -> None:
    code = """
@pytest.mark.asyncio
async def test_it(headrace_js, headrace_client):
    await check(headrace_js, headrace_client)
    raise KeyboardInterrupt
"""
    assert run(pytester, code).ret == pytest.ExitCode.INTERRUPTED
    assert list_leftovers(tmp_path) == []
