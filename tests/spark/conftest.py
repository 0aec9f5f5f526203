"""One Spark session for all tests of this folder, on one worker of the test run, and the two servers they read from."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from typer.testing import CliRunner

from conformance.servers import KINDS, OURS, Server, Setup
from headrace.cli import spark_jobs as commands
from headrace.reader.blocking_connection import (
    BlockingConnection,
    ConnectionFailed,
    ServerAddress,
    drop_connection,
)
from headrace.spark.pyspark_compat import HAS_READ_LIMITS
from support.ports import free_port

Query = TypeVar("Query", bound=DataSourceStreamReader)
Begun = Callable[[Query], Query]

_numbers = itertools.count(1)
FOLDER = Path(__file__).parent
#: Timeout for replies that must arrive. Generous, because the machine may pause for some seconds.
TIMEOUT_S = 90.0
#: Queries are short and cores few: the second compiler and parallel collection would cost more than they save.
BRISK = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
needs_read_limits = pytest.mark.skipif(
    not HAS_READ_LIMITS, reason="a Python source has limits per batch since PySpark 4.2"
)
needs_batch_starts = pytest.mark.skipif(
    not HAS_READ_LIMITS, reason="Spark tells a Python source where a batch starts since PySpark 4.2"
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of this folder on one worker: starting Spark can take a minute on a busy machine.

    tryfirst, because pytest-xdist reads the groups in this hook too, and may have been loaded before this file.
    """
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(600))
            # A warning of Spark about recent pandas versions whenever Arrow is used; nothing here uses pandas.
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.update(BRISK)
    # Spark gives the process of a streaming reader ten seconds to start, which cannot be configured: compile and
    # cache its imports before.
    importlib.import_module("pyspark.sql.streaming.python_streaming_source_runner")
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("headrace tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.streaming.checkpoint.fileChecksum.enabled", "false")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_lease_outlives_its_test() -> Iterator[None]:
    """End queries that a test started in the role of Spark's driver; otherwise they would renew their leases forever."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name == "headrace-lease":
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), "a query was begun and not ended: its lease is still renewed"


class Broker:
    """A server with a blocking connection, and helpers to create and fill streams."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.link = self._linked()

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def path(self) -> str:
        return str(self.server.store_dir)

    @property
    def web(self) -> str:
        """Return the address of its HTTP port."""
        return self.server.monitoring_url("").rstrip("/")

    def api(self, call: str, body: Any = None) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(self.link.request(f"$JS.API.{call}", body).payload)
        except ConnectionFailed:
            # A server closes a connection that does not answer its pings, which nobody reads during long tests.
            self.reconnect()
            answer = json.loads(self.link.request(f"$JS.API.{call}", body).payload)
        assert "error" not in answer, answer["error"]
        return answer

    def create(self, stream: str, **config: Any) -> None:
        base = {"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True}
        self.api(f"STREAM.CREATE.{stream}", {**base, **config})

    def state(self, stream: str) -> dict[str, Any]:
        state: dict[str, Any] = self.api(f"STREAM.INFO.{stream}")["state"]
        return state

    def publish(self, stream: str, messages: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Publish (subject, header lines, payload) each; return when all are stored."""
        frames = [_frame(*message) for message in messages]
        want = self.state(stream)["last_seq"] + len(frames)
        self.link.send(b"".join(frames))
        eventually(lambda: self.state(stream)["last_seq"] >= want)

    def fill(self, stream: str, count: int, start: int = 0) -> None:
        self.publish(stream, ((f"{stream}.{n % 7}", b"", b"%d" % n) for n in range(start, start + count)))

    def reconnect(self) -> None:
        self.link.close()
        self.link = self._linked()

    def _linked(self) -> BlockingConnection:
        return BlockingConnection(ServerAddress(servers=(self.server.url,), timeout_s=TIMEOUT_S))

    def close(self) -> None:
        self.link.close()
        drop_connection(ServerAddress(servers=(self.server.url,)))
        self.server.close()


def _frame(subject: str, lines: bytes, payload: bytes) -> bytes:
    if not lines:
        return b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(payload), payload)
    header = b"NATS/1.0\r\n%s\r\n" % lines
    sizes = (subject.encode(), len(header), len(header) + len(payload), header, payload)
    return b"HPUB %s %d %d\r\n%s%s\r\n" % sizes


def eventually(condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def make_batch_limit(messages: int) -> dict[str, int]:
    """Return the options of a query with several batches; before PySpark 4.2 one batch reads everything."""
    return {"maxMessagesPerTrigger": messages} if HAS_READ_LIMITS else {}


def monitored() -> Setup:
    """Return a setup with an HTTP port that stays the same after restarts."""
    return Setup(flags=("-m", str(free_port())))


@pytest.fixture(scope="session")
def brokers() -> Iterator[dict[str, Broker]]:
    """Both servers, shared by all tests."""
    made = {kind: Broker(Server(kind, monitored())) for kind in KINDS}
    for broker in made.values():
        broker.create("STAYS")
    yield made
    for broker in made.values():
        broker.close()


@pytest.fixture(params=KINDS)
def broker(request: pytest.FixtureRequest, brokers: dict[str, Broker]) -> Broker:
    """Each of the two servers; a test uses the unique `name` for its stream."""
    return brokers[request.param]


@pytest.fixture
def ours(brokers: dict[str, Broker]) -> Broker:
    """The Headrace server, for tests in which the server does not matter."""
    return brokers[OURS]


@pytest.fixture
def own_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A Headrace server for one test, to be killed and restarted."""
    made = Broker(Server(getattr(request, "param", OURS), monitored()))
    yield made
    made.close()


@pytest.fixture
def begun() -> Iterator[Begun[Any]]:
    """`begun(reader)`: a streaming reader that the test uses as Spark's driver does; it is stopped with the test."""
    readers: list[DataSourceStreamReader] = []

    def begin(reader: Query) -> Query:
        readers.append(reader)
        return reader

    yield begin
    for reader in readers:
        reader.stop()


@pytest.fixture
def name() -> str:
    return f"S{os.getpid()}n{next(_numbers)}"


@pytest.fixture
def load(spark: SparkSession) -> Callable[..., DataFrame]:
    """`load(broker, stream, **options)`: a stream as a DataFrame."""

    def loaded(broker: Broker, stream: str, /, **options: Any) -> DataFrame:
        reader = spark.read.format("headrace").option("servers", broker.url).option("stream", stream)
        return reader.options(**options).load()

    return loaded


@pytest.fixture
def pipeline(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run `headrace pipeline ...` in the existing session; return its final output."""

    @contextmanager
    def shared(_: str) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(commands, "spark_session", shared)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(commands.pipeline, list(arguments))
        assert done.exit_code == 0, done.output
        return done.stdout

    return run
