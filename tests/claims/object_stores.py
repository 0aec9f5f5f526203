"""Starts the real object stores for tests: SeaweedFS for S3, Azurite for Azure, an emulator for Google.

Each is one process per test session on free loopback ports, with its data in a temporary folder. Bucket names are
unique.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from claims.gcs_xml_gateway import Door
from support.ports import free_port, reserve_number

ROOT = Path(__file__).parents[2]
AZURITE = ROOT / ".venv" / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
#: The default account of every Azurite; published by its authors, not a secret.
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_START_TIMEOUT_S = 120.0
#: SeaweedFS has six consecutive ports, and six for gRPC 10000 above them: all below the ephemeral ports of the system.
_FIRST_BASE, _BASE_STEP, _BASES = 13_000, 20, 480


def _is_answered(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


class Process:
    """The process of a store, and its folder."""

    def __init__(self, name: str, command: list[str], folder: Path, **environment: str) -> None:
        self.name = name
        self.folder = folder
        self._command = command
        self._environment = {**os.environ, **environment}
        self._log = (folder / "log").open("wb")
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            env=self._environment,
        )

    def wait_for(self, url: str) -> None:
        """Wait until the address replies, with any status."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            is_there = _is_answered(url)
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self._read_log()}")
            if is_there:
                return
            time.sleep(0.05)

    def _read_log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Kill the process: its data is not needed, and an orderly shutdown takes up to twenty seconds."""
        self._process.kill()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Weed(Process):
    """SeaweedFS with its S3 gateway; `run_lifecycle` applies lifecycle rules on demand.

    With `table_bucket` it has such a bucket, and serves it as an Iceberg REST catalog.
    """

    KEYS = {"access_key_id": "headrace", "secret_access_key": "headrace-secret"}

    def __init__(self, listen: str = "127.0.0.1", *, table_bucket: str = "") -> None:
        folder = Path(tempfile.mkdtemp(prefix="claims-weed-"))
        self.binary = Path(sys.executable).with_name("weed")
        base = self._free_base()
        names = ("master.port", "volume.port", "filer.port", "s3.port", "admin.port", "s3.port.iceberg")
        self.ports = {name: base + index for index, name in enumerate(names)}
        self._table_bucket = table_bucket
        if not table_bucket:
            self.ports["s3.port.iceberg"] = 0
        flags = [f"-{name}={port}" for name, port in self.ports.items()]
        flags += ["-ip=127.0.0.1", f"-ip.bind={listen}", "-webdav=false", "-s3.port.lance=0"]
        flags += [f"-tableBucket={table_bucket}"] if table_bucket else []
        flags += ["-master.telemetry=false", "-admin.ui=false", f"-dir={folder}"]
        super().__init__(
            "weed mini",
            [str(self.binary), "mini", *flags],
            folder,
            AWS_ACCESS_KEY_ID=self.KEYS["access_key_id"],
            AWS_SECRET_ACCESS_KEY=self.KEYS["secret_access_key"],
        )
        self.endpoint = f"http://127.0.0.1:{self.ports['s3.port']}"
        self.catalog_url = f"http://127.0.0.1:{self.ports['s3.port.iceberg']}" if table_bucket else ""
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        self.wait_for(self.endpoint)
        self._wait_until_objects_are_stored()
        if self.catalog_url:
            self.wait_for(f"{self.catalog_url}/v1/config")
            self._wait_for_bucket()

    def _wait_until_objects_are_stored(self) -> None:
        """Wait until an object can be put, read and deleted: the gateway replies before the volumes can be written."""
        keys = {f"aws_{name}": value for name, value in self.KEYS.items()}
        retries = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 1})
        client = boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1", config=retries, **keys
        )
        deadline = time.monotonic() + _START_TIMEOUT_S
        with contextlib.closing(client):
            while not self._stores_objects(client):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} stores no objects:\n{self._read_log()}")
                time.sleep(0.05)

    @staticmethod
    def _stores_objects(client: Any) -> bool:
        place = {"Bucket": "ready", "Key": "object"}
        try:
            with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket="ready")
            client.put_object(**place, Body=b"x")
            found: bytes = client.get_object(**place)["Body"].read()
            client.delete_object(**place)
            client.delete_bucket(Bucket="ready")
            return found == b"x"
        except (BotoCoreError, ClientError):
            return False

    def _wait_for_bucket(self) -> None:
        """Wait until the catalog has its bucket, which it creates after it is ready."""
        keys = {"client_id": self.KEYS["access_key_id"], "client_secret": self.KEYS["secret_access_key"]}
        form = urllib.parse.urlencode({"grant_type": "client_credentials", "scope": "catalog", **keys})
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(
                    f"{self.catalog_url}/v1/oauth/tokens", form.encode(), timeout=5
                ) as reply:
                    token = json.load(reply)["access_token"]
                request = urllib.request.Request(
                    f"{self.catalog_url}/v1/{self._table_bucket}/namespaces",
                    headers={"Authorization": f"Bearer {token}"},
                )
                urllib.request.urlopen(request, timeout=5).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "the table bucket is not there"
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill the process, as in a crash; `restart` starts it again with its data."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self._process = self._start()
        self._wait_until_ready()

    @staticmethod
    def _free_base() -> int:
        """Find six consecutive ports whose gRPC ports (+10000) are free too, and that no other process takes meanwhile."""
        start = os.getpid()
        for number in range(start, start + _BASES):
            base = _FIRST_BASE + number % _BASES * _BASE_STEP
            if not reserve_number("weed", number % _BASES):
                continue
            with contextlib.ExitStack() as stack:
                try:
                    for port in (*range(base, base + 6), *range(base + 10000, base + 10006)):
                        item = stack.enter_context(socket.socket())
                        item.bind(("127.0.0.1", port))
                except OSError:
                    continue
                return base
        raise RuntimeError("no free ports")

    @property
    def settings(self) -> dict[str, object]:
        return {"endpoint": self.endpoint, **self.KEYS}

    def close(self) -> None:
        super().close()
        for port in self.ports.values():  # otherwise its sockets for other nodes remain
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                path.unlink(missing_ok=True)
            for path in Path("/tmp").glob(f"seaweedfs-*-{port + 10000}.sock"):
                path.unlink(missing_ok=True)

    def run_lifecycle(self) -> str:
        """Apply the lifecycle rules of the buckets now."""
        return self._shell(
            f"s3.lifecycle.run-shard -shards 0-15 -s3 127.0.0.1:{self.ports['s3.port'] + 10000}"
        )

    def age(self, bucket: str, days: int, since: float) -> None:
        """Make everything written to a bucket since `begin` older.

        Saves the entries, moves their times back, and loads them again. Times are varints there; a shift of a few
        days does not change their length.
        """
        path = self.folder / f"{bucket}.meta"
        self._shell(f"fs.meta.save -o {path} /buckets/{bucket}")
        entries = path.read_bytes()
        for moment in range(int(since) - 1, int(time.time()) + 2):
            entries = entries.replace(_varint(moment), _varint(moment - days * 86400))
        path.write_bytes(entries)
        self._shell(f"fs.meta.load {path}")

    def _shell(self, command: str) -> str:
        ports = self.ports
        shell = [
            str(self.binary),
            "shell",
            f"-master=127.0.0.1:{ports['master.port']}",
            f"-filer=127.0.0.1:{ports['filer.port']}",
        ]
        done = subprocess.run(
            shell,
            input=f"{command}\n".encode(),
            capture_output=True,
            timeout=60,
            cwd=self.folder,
            check=True,
        )
        return done.stdout.decode() + done.stderr.decode()


def _varint(number: int) -> bytes:
    """Encode a number as a protocol buffers varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


class Azurite(Process):
    """Azure's emulator, installed with npm."""

    def __init__(self) -> None:
        if not AZURITE.exists() or not shutil.which("node"):
            raise RuntimeError(
                "Azurite is missing: run `make test` (needs npm; on Debian: apt-get install nodejs npm)"
            )
        folder = Path(tempfile.mkdtemp(prefix="claims-azurite-"))
        port = free_port()
        flags = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
        command = ["node", str(AZURITE), *flags, "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
        super().__init__("azurite", command, folder)
        self.endpoint = f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"
        self.wait_for(self.endpoint)

    @property
    def settings(self) -> dict[str, object]:
        return {"endpoint": self.endpoint, "account": AZURITE_ACCOUNT, "access_key": AZURITE_KEY}


class GcsEmulator(Process):
    """An emulator of Google's JSON API behind our XML gateway, not the real service: see docs/reference/claims.md."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="claims-gcs-"))
        port = free_port()
        code = (
            "from gcp_storage_emulator.server import create_server as c; "
            f"s = c('127.0.0.1', {port}, in_memory=True); s.run()"
        )
        super().__init__("gcp-storage-emulator", [sys.executable, "-W", "ignore", "-c", code], folder)
        self.endpoint = f"http://127.0.0.1:{port}"
        self.wait_for(self.endpoint)
        self.door = Door(self.endpoint)
        self._serving = threading.Thread(target=self.door.serve_forever, args=(0.05,), daemon=True)
        self._serving.start()

    @property
    def settings(self) -> dict[str, object]:
        """Use the emulator itself for administration, and the XML gateway for data."""
        data = f"http://127.0.0.1:{self.door.server_address[1]}"
        return {"endpoint": data, "admin_endpoint": self.endpoint, "retries": 0}

    def close(self) -> None:
        self.door.shutdown()
        self.door.server_close()
        self._serving.join()
        super().close()
