"""On a cluster: a real master and two workers on loopback, and Spark Connect. The drivers are separate processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spark.conftest import BRISK, Broker, eventually, make_batch_limit
from support.ports import free_port

HOME = Path(pyspark.__file__).parent
MESSAGES = 2000
pytestmark = pytest.mark.slow


def environment() -> dict[str, str]:
    return {
        **os.environ,
        **BRISK,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
    }


class Process:
    """A process with its children, which end with it."""

    def __init__(self, command: list[str], log: Path, **extra: str) -> None:
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**environment(), **extra}, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def ended_well(self, timeout_s: float = 150.0) -> bool:
        code = self._process.wait(timeout_s)
        assert code == 0, self.text()[-4000:]
        return True

    def says(self, word: str) -> None:
        eventually(lambda: word in self.text() or self._process.poll() is not None, 90)
        assert word in self.text(), self.text()[-4000:]

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Cluster:
    """A standalone master and two workers with one core each."""

    def __init__(self, folder: Path) -> None:
        program = str(HOME / "bin" / "spark-class")
        package = "org.apache.spark.deploy"
        self.url = f"spark://127.0.0.1:{free_port()}"
        port = self.url.rpartition(":")[2]
        master = [f"{package}.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0"]
        self.processes = [Process([program, *master], folder / "master.log")]
        try:
            self.processes[0].says("I have been elected leader")
            for number in (1, 2):
                work = ["--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", "1g"]
                work += ["-d", str(folder / f"work{number}"), self.url]
                command = [program, f"{package}.worker.Worker", *work]
                self.processes.append(Process(command, folder / f"worker{number}.log"))
            for worker in self.processes[1:]:
                worker.says("Successfully registered with master")
        except BaseException:
            self.close()
            raise

    def executors(self) -> list[int]:
        """Return the processes that run tasks."""
        workers = {process.pid for process in self.processes[1:]}
        return [pid for pid, parent, line in processes() if parent in workers and b"ExecutorBackend" in line]

    def close(self) -> None:
        for process in reversed(self.processes):
            process.close()


def processes() -> Iterator[tuple[int, int, bytes]]:
    """Return (process, parent, command line) of all running processes."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            yield int(entry.name), parent, (entry / "cmdline").read_bytes()
        except OSError:
            continue


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()


def driver(script: str, folder: Path, **values: Any) -> Process:
    """Run a script with `values` as its variables; it writes its results to the file `found`."""
    names = values | {"folder": str(folder)}
    body = (
        f"import json\nfrom pathlib import Path\nfrom pyspark.sql import SparkSession\nvalues = {names!r}\n"
    )
    (folder / "driver.py").write_text(body + "globals().update(values)\n" + textwrap.dedent(script))
    return Process([sys.executable, str(folder / "driver.py")], folder / "driver.log")


STANDALONE = """
    spark = (
        SparkSession.builder.master(master).config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m").config("spark.executor.cores", "1")
        .config("spark.sql.shuffle.partitions", "2").getOrCreate()
    )
    reader = spark.read.format("headrace").option("servers", url).option("stream", stream)
    found = {}
    for way, options in {"wire": {}, "http": {"path": web}}.items():
        rows = reader.options(minPartitions=2, **options).load()
        found[way] = sorted(int(row.data) for row in rows.select("data").collect())
    Path(folder, "found").write_text(json.dumps(found))

    feed = spark.readStream.format("headrace").option("servers", url).option("stream", stream)
    feed = feed.options(starting="earliest", minPartitions=2, **limit).load()
    writer = feed.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
    query = writer.start(folder + "/rows")
    while not Path(folder, "all").exists() and not query.awaitTermination(0.2):
        pass
    query.processAllAvailable()
    query.stop()
    spark.stop()
"""


def test_a_standalone_cluster_reads_by_both_paths_and_survives_a_killed_executor(
    cluster: Cluster, spark: Any, own_broker: Broker, name: str, tmp_path: Path
) -> None:
    own_broker.create(name)
    own_broker.fill(name, MESSAGES)
    names = {"master": cluster.url, "url": own_broker.url, "web": own_broker.web, "stream": name}
    names["limit"] = make_batch_limit(400)
    process = driver(STANDALONE, tmp_path, **names)
    commits = tmp_path / "checkpoint" / "commits"
    try:
        eventually(lambda: len(list(commits.glob("[0-9]*"))) >= 1 or process._process.poll() is not None, 150)
        assert commits.is_dir(), process.text()[-4000:]
        eventually(lambda: len(cluster.executors()) == 2)
        os.kill(cluster.executors()[0], signal.SIGKILL)
        own_broker.fill(name, MESSAGES, start=MESSAGES)  # work that remains after its death
        (tmp_path / "all").touch()
        process.ended_well()
    finally:
        process.close()
    found = json.loads((tmp_path / "found").read_text())
    assert found == {"wire": list(range(MESSAGES)), "http": list(range(MESSAGES))}
    rows = spark.read.parquet(str(tmp_path / "rows")).select("data").collect()
    assert sorted(int(row.data) for row in rows) == list(range(2 * MESSAGES))


CONNECT = """
    spark = SparkSession.builder.remote("local[2]").config("spark.driver.host", "127.0.0.1").getOrCreate()
    assert type(spark).__module__.startswith("pyspark.sql.connect")
    reader = spark.read.format("headrace").option("servers", url).option("stream", stream)
    found = {"rows": reader.load().count()}
    rows = spark.sql(f"select '{stream}.new' as subject, 'x' || id as data from range(10)")
    rows.write.format("headrace").mode("append").option("servers", url).option("stream", stream).save()
    feed = spark.readStream.format("jetstream").option("servers", url).option("stream", stream)
    feed = feed.option("starting", "last-per-subject").option("subject", stream + ".*").load()
    writer = feed.select("subject").writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
    query = writer.trigger(availableNow=True).start(folder + "/rows")
    query.awaitTermination()
    found["last"] = spark.read.parquet(folder + "/rows").count()
    try:
        reader.option("starting", "someday").load().collect()
    except Exception as error:
        found["error"] = str(error)
    Path(folder, "found").write_text(json.dumps(found))
    spark.stop()
"""


def test_spark_connect_reads_writes_and_streams(ours: Broker, name: str, tmp_path: Path) -> None:
    ours.create(name)
    ours.fill(name, 100)
    process = driver(CONNECT, tmp_path, url=ours.url, stream=name)
    try:
        process.ended_well()
    finally:
        process.close()
    found = json.loads((tmp_path / "found").read_text())
    assert (found["rows"], found["last"]) == (100, 8)
    assert "option `starting`" in found["error"]
