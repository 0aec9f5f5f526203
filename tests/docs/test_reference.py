"""The reference pages name every header, option, field and public name of the code."""

from __future__ import annotations

import dataclasses
import re
import runpy
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from headrace.claims import ClaimConfig, Ttl
from headrace.client import StreamSource, sync
from headrace.config.archive_options import ArchiveOptions
from headrace.jetstream_api.configs import ApiStruct, ConsumerConfig, StreamConfig
from headrace.jetstream_api.requests import NextRequest
from headrace.reader import options
from headrace.spark.kv import kv_datasource
from headrace.spark.write import write_options
from headrace.testing import HostedServer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
GENERATED = ("headers.md", "errors.md", "metrics.md")
#: Parts of other names, and a status text.
NO_HEADERS = {"Nats-Batch-", "Nats-Expected-", "Nats-Wrong-Pin-Id"}


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    pages = runpy.run_path(str(DOCS / "make_reference.py"))["make_pages"]()
    assert pages[name] == (REFERENCE / name).read_text(), "run: python docs/make_reference.py"


def test_the_headers_page_names_every_header() -> None:
    page = (REFERENCE / "headers.md").read_text()
    files = [
        file
        for part in ("broker", "jetstream_api", "protocol", "_native")
        for file in (ROOT / "src" / "headrace" / part).rglob("*.py")
    ]
    used = {name for file in files for name in re.findall(r"\bNats-[A-Z][A-Za-z-]+", file.read_text())}
    assert sorted(name for name in used - NO_HEADERS if f"`{name}`" not in page) == []


def test_the_metrics_page_has_the_labels_of_the_server(tmp_path: Path) -> None:
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}")
    with HostedServer(store_dir=tmp_path / "data", http_port=-1, archive=archive) as server:
        with sync.connect(server.url) as client:
            client.add_stream(name="ORDERS", subjects=["orders"])
            client.add_stream(name="COPY", sources=[StreamSource(name="ORDERS")])
            client.run(client.js.add_consumer("ORDERS", durable_name="worker"))
        with urllib.request.urlopen(f"{server.server.monitor_url}metrics") as response:
            text = response.read().decode()
    labels: dict[str, list[str]] = {}
    for name, shown in re.findall(
        r"^(headrace_\w+?)(?:_bucket|_sum|_count)?(\{.*\})? \S+$", text, re.MULTILINE
    ):
        labels[name] = [label for label in re.findall(r'(\w+)="', shown) if label != "le"]
    page = (REFERENCE / "metrics.md").read_text()
    documented = {
        name: re.findall(r"`(\w+)`", shown)
        for name, shown in re.findall(r"^\| `(headrace_\w+)` \| \w+ \| (.*?) \|", page, re.MULTILINE)
    }
    # A server that serves is no standby.
    assert {name: found for name, found in documented.items() if "_standby" not in name} == labels


def fields_in_tables(name: str) -> set[str]:
    """Return the names in the first column of the tables of a page."""
    cells = re.findall(r"^\| (`.*?) \|", (REFERENCE / name).read_text(), re.MULTILINE)
    return {field for cell in cells for field in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize("struct", [ConsumerConfig, NextRequest])
def test_the_consumers_page_has_a_row_for_every_field(struct: type[ApiStruct]) -> None:
    assert set(struct.__struct_fields__) - fields_in_tables("consumers.md") == set()


def test_the_streams_page_has_a_row_for_every_field() -> None:
    assert set(StreamConfig.__struct_fields__) - fields_in_tables("streams.md") == set()


@pytest.mark.parametrize("settings", [ClaimConfig, Ttl])
def test_the_claims_page_has_a_row_for_every_key(settings: type[ClaimConfig | Ttl]) -> None:
    keys = {field.name for field in dataclasses.fields(settings)} - {"ttl"}
    assert keys - fields_in_tables("claims.md") == set()


def test_the_spark_page_has_a_row_for_every_option() -> None:
    """Options of the source, the sink and both sides of buckets, with their names in the documentation."""
    tables = (
        options._CONNECTION_OPTIONS,
        options._READ_OPTIONS,
        write_options.WRITE_OPTIONS,
        kv_datasource._WRITE_OPTIONS,
    )
    names = {"servers", "stream", "bucket", "keys", "mode"}.union(*tables)
    in_code = {options._DOCUMENTED_NAMES.get(name, name) for name in names}
    section = (REFERENCE / "spark.md").read_text().split("## Options")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == in_code


def test_the_spark_page_has_the_defaults_of_the_code() -> None:
    page = (REFERENCE / "spark.md").read_text()
    read = options.parse_read_options({"stream": "S"})
    write = write_options.parse_write_options({"stream": "S"})
    defaults = {
        "timeout": f"{read.address.timeout_s:g}s",
        "reconnect": f"{read.reconnect_s:g}s",
        "wait": f"{read.wait_ns // 1_000_000}ms",
        "batchRows": str(read.batch_rows),
        "claimParallel": str(read.claim_parallel),
        "maxClaimBytes": f"{read.claim_bytes_max >> 20}MB",
        "lease": f"{read.lease_s / 3600:g}h",
        "claims": read.claims,
        "claimErrors": read.claim_errors,
        "atomic": write.atomic,
        "batchSize": str(write.batch_messages),
        "exactlyOnce": write.exactly_once,
        "atLeastOnce": str(write.at_least_once).lower(),
        "stagingExpiry": f"{write.staging_expiry_s / 86_400:g}d",
        "progressExpiry": f"{write.progress_expiry_s / 86_400:g}d",
        "conflict": kv_datasource.KvWriteOptions.conflict,
    }
    for name, default in defaults.items():
        assert re.search(rf"^\| `{name}` \| [^|]+ \| `{default}` \|", page, re.MULTILINE), name


def test_the_command_line_page_names_every_flag_of_serve() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "--help"], capture_output=True, text=True, check=True
    )
    flags = set(re.findall(r"(?<=[ ,])--?[a-zA-Z_]+\b", done.stdout))
    page = (REFERENCE / "cli.md").read_text()
    assert sorted(flag for flag in flags if f"`{flag}`" not in page) == []
