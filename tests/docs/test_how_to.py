"""The how-to guides: the server accepts their configurations, and their commands run in the order of the page.

On a page, a `conf` or `yaml` block that begins with `# <name>` is a file of that name. The `sh` blocks are one shell
script that finds these files in its folder. A page that does not start a server first runs against one with streams.
Commands that a test cannot run (a container, a cluster) are `shell` blocks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from claims.object_stores import Weed
from conformance.servers import NATS_SERVER, Server
from support.ports import free_port
from support.processes import headrace, serving

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = sorted(HOW_TO.glob("*.md"))
#: A page has up to forty commands, each of which starts a Python process, on a machine that is busy.
SCRIPT_TIMEOUT_S = 1000
PORTS = ("4222", "4223", "7422", "8222")
#: A comment `<!-- sh` holds commands that the test needs and the reader does not.
SHELL = re.compile(r"^( *)```sh\n(.*?)^\1```$|^<!-- sh\n(.*?)^-->$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"# (\S+\.(?:conf|yaml|json))\n")
#: `headrace serve` in the background: the script waits until the server is ready.
SERVE = re.compile(r"^(headrace serve [^\n]*?) &$", re.MULTILINE)


def blocks(page: Path, kind: str) -> list[str]:
    return [textwrap.dedent(text) for _, found, text in BLOCK.findall(page.read_text()) if found == kind]


def script_of(page: Path) -> str:
    """Return the commands of a page, in order."""
    return "\n".join(textwrap.dedent(shown or hidden) for _, shown, hidden in SHELL.findall(page.read_text()))


def write_files(page: Path, folder: Path, ports: dict[str, str]) -> None:
    for text in blocks(page, "conf") + blocks(page, "yaml"):
        if name := FILE_NAME.match(text):
            (folder / name[1]).write_text(with_ports(text, ports))


CONFIGURATIONS = [(page, number, text) for page in PAGES for number, text in enumerate(blocks(page, "conf"))]


@pytest.mark.parametrize(
    ("page", "text"),
    [(page, text) for page, _, text in CONFIGURATIONS],
    ids=[f"{page.stem}-{number}" for page, number, _ in CONFIGURATIONS],
)
def test_the_server_accepts_the_configurations(page: Path, text: str, tmp_path: Path) -> None:
    write_files(page, tmp_path, {port: port for port in PORTS})
    (tmp_path / "page.conf").write_text(text)
    done = headrace("serve", "-t", "-c", str(tmp_path / "page.conf"))
    assert done.returncode == 0, done.stderr


#: Pages with their own tests.
ELSEWHERE = {"claims-with-s3-lifecycle-rules", "write-a-stream-to-an-iceberg-table"}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "sh") and page.stem not in ELSEWHERE],
    ids=lambda page: str(page.stem),
)
@pytest.mark.timeout(1200)
def test_the_commands_run(page: Path, tmp_path: Path) -> None:
    ports = {port: str(free_port()) for port in PORTS}
    script = with_ports(script_of(page), ports)
    write_files(page, tmp_path, ports)
    if script.startswith("headrace serve"):
        run_script(script, tmp_path, ports)
        return
    with serving(tmp_path, "-js", "-sd", str(tmp_path / "store"), "-m", ports["8222"]) as server:
        run_script(script, tmp_path, {"4222": str(server.port)})


@pytest.mark.timeout(1200)
def test_the_everyday_tasks_run_on_nats_server(tmp_path: Path) -> None:
    """Without the block with dead letters, which the page marks as Headrace only."""
    page = HOW_TO / "everyday-tasks.md"
    shared = [
        textwrap.dedent(shown or hidden)
        for _, shown, hidden in SHELL.findall(page.read_text())
        if "--dead-letter" not in shown
    ]
    assert len(shared) == len(SHELL.findall(page.read_text())) - 1
    with Server(NATS_SERVER) as server:
        run_script("\n".join(shared), tmp_path, {"4222": str(server.port)})


def test_the_everyday_tasks_are_ten() -> None:
    titles = re.findall(r"^## (\d+)\. ", (HOW_TO / "everyday-tasks.md").read_text(), re.MULTILINE)
    assert titles == [str(number) for number in range(1, 11)]


@pytest.mark.timeout(600)
def test_a_table_is_read(tmp_path: Path) -> None:
    page = HOW_TO / "write-a-stream-to-an-iceberg-table.md"
    with serving(tmp_path, "-js", "-sd", str(tmp_path / "store")) as server:
        run_script(script_of(page), tmp_path, {"4222": str(server.port)})
        # The blocks are one program.
        code = "\n".join(blocks(page, "python")).replace("127.0.0.1:4222", f"127.0.0.1:{server.port}")
        assert run_python(tmp_path, code) == "['orders.acme.new']\n1 rows\n"


def with_ports(text: str, ports: dict[str, str]) -> str:
    return re.sub(r"\b(?:" + "|".join(PORTS) + r")\b", lambda found: ports[found[0]], text)


def run_script(script: str, folder: Path, ports: dict[str, str]) -> str:
    """Run the commands in a shell in which `headrace` is this version, and end what they started."""
    url = f"nats://127.0.0.1:{ports['4222']}"
    waiting = 'until grep -q "Server is ready" serve.log; do kill -0 $!; sleep 0.05; done'
    script = SERVE.sub(rf": > serve.log; \1 2> serve.log &\n{waiting}", script)
    prelude = f'headrace() {{ exec_or_call {sys.executable} -m headrace "$@"; }}\n'
    prelude += 'exec_or_call() { if [ "$BASHPID" = "$$" ]; then "$@"; else exec "$@"; fi; }\n'
    done = subprocess.run(
        ["bash", "-c", f"{prelude}python() {{ {sys.executable} \"$@\"; }}\nset -e -o pipefail\n"
         f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"],
        capture_output=True,
        text=True,
        timeout=SCRIPT_TIMEOUT_S,
        cwd=folder,
        env={**os.environ, "HEADRACE_URL": url, "NATS_URL": url},
        check=False,
    )  # fmt: skip
    log = folder / "serve.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    return done.stdout


def run_python(folder: Path, code: str, *program: str, timeout_s: float = 60.0) -> str:
    script = folder / "test_block.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, *program, str(script)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_with_virtual_time_run(tmp_path: Path) -> None:
    tests, program = blocks(HOW_TO / "test-with-virtual-time.md", "python")
    pytest_flags = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    assert "2 passed" in run_python(tmp_path, tests, *pytest_flags)
    run_python(tmp_path, program)


def test_the_tests_of_a_nats_program_run(tmp_path: Path) -> None:
    shared, options, own, *programs = blocks(HOW_TO / "testing.md", "python")
    pytest_flags = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    assert "3 passed" in run_python(tmp_path, shared, *pytest_flags)
    assert "1 passed" in run_python(tmp_path, options, *pytest_flags)
    assert "2 passed" in run_python(tmp_path, own, *pytest_flags)
    assert [run_python(tmp_path, program) for program in programs] == ["stored 1\n", "stored 1\n", "True\n"]


def test_claims_in_a_bucket_of_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = HOW_TO / "claims-with-s3-lifecycle-rules.md"
    store = Weed()
    try:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.KEYS["access_key_id"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.KEYS["secret_access_key"])
        (settings,) = blocks(page, "yaml")
        (tmp_path / "claims.yaml").write_text(settings.replace("http://127.0.0.1:8333", store.endpoint))
        with serving(tmp_path, "-js", "-sd", str(tmp_path / "store")) as server:
            run_script(script_of(page), tmp_path, {"4222": str(server.port)})
            (program,) = blocks(page, "python")
            shown = run_python(tmp_path, program.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
        assert shown == "500000 bytes\n"
    finally:
        store.close()


@pytest.mark.timeout(600)
def test_the_spark_sink_writes_exactly_once(tmp_path: Path) -> None:
    """The blocks are one program."""
    code = "\n".join(blocks(HOW_TO / "exactly-once-spark-sink.md", "python"))
    with serving(tmp_path, "-js", "-sd", str(tmp_path / "data")) as server:
        run_python(tmp_path, code.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"), timeout_s=500)


def test_yaml_blocks_are_yaml() -> None:
    texts = [text for page in PAGES for text in blocks(page, "yaml")]
    assert texts
    for text in texts:
        assert list(yaml.safe_load_all(text))
