"""The monitoring port while a server takes its archive over."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from headrace.config.archive_options import ArchiveOptions
from headrace.errors import ArchiveError
from headrace.server import Server
from support.ports import free_port


def _fetch(port: int, page: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def test_a_server_that_waits_for_its_archive_is_alive_and_not_ready(tmp_path: Path) -> None:
    silent: list[asyncio.StreamWriter] = []
    connected = asyncio.Event()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent.append(writer)
        connected.set()

    cluster = await asyncio.start_server(accept, "127.0.0.1", 0)
    archive = ArchiveOptions(f"nats://127.0.0.1:{cluster.sockets[0].getsockname()[1]}/ARCHIVE")
    port = free_port()
    server = Server(tmp_path, archive=archive, http_port=port)
    starting = asyncio.create_task(server.start())
    await asyncio.wait_for(connected.wait(), 60)
    status, body = await asyncio.to_thread(_fetch, port, "/varz")
    assert (status, body["standby"], body["starting"]) == (200, False, True)
    status, body = await asyncio.to_thread(_fetch, port, "/healthz")
    assert (status, body["standby"]) == (503, False)
    assert "takes its archive over" in body["error"]
    cluster.close()
    for writer in silent:
        writer.close()
    with pytest.raises(ArchiveError):
        await starting
