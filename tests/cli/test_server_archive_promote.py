"""A server with `ack: local` whose disk is gone is promoted: what it had not archived is lost, no sequence is used twice."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

from conformance.client import Client
from support.processes import headrace, serving

from .test_server_archive import configure, wait_archived
from .test_server_backup import run_tool


def test_a_promoted_server_goes_on_above_what_the_lost_one_acknowledged(tmp_path: Path) -> None:
    url, folder = f"file://{tmp_path / 'archive'}", tmp_path / "archive"
    home = tmp_path / "promoted" / "data"
    # On a machine that is busy, a renewal of the leader object may be late.
    with serving(tmp_path, *configure(tmp_path, url, ", takeover_after: 20s")) as server:
        with Client(server.port) as client:
            for name in ("S", "T"):
                client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name.lower()]})
            for _ in range(5):
                client.request("s", b"archived")
            wait_archived(server)
            alive = headrace("archive", "promote", url, str(home), "--accept-loss")
            assert alive.returncode == 1
            assert "writes the archive now" in alive.stderr
            folder.rename(tmp_path / "away")
            folder.write_text("not a folder")
            last = [client.request("s", b"not archived").json["seq"] for _ in range(20)][-1]
            assert last == 25
        server.signal(signal.SIGKILL)
        server.ended()
    folder.unlink()
    (tmp_path / "away").rename(folder)
    (tmp_path / "data").rename(tmp_path / "found-later")

    asked = headrace("archive", "promote", url, str(home))
    assert asked.returncode == 1
    assert "--accept-loss" in asked.stderr
    assert not home.exists()
    promoted = run_tool("archive", "promote", url, home, "--accept-loss")
    (reserved,) = promoted["reserved"].values()
    assert reserved > last
    with serving(home.parent, *configure(home.parent, url)) as server:
        with Client(server.port) as client:
            state = client.api("STREAM.INFO.S")["state"]
            assert (state["messages"], state["first_seq"]) == (5, 1)
            assert client.request("s", b"new").json["seq"] == reserved + 1
            assert client.request("t", b"new").json["seq"] == reserved + 1
        wait_archived(server)
    assert run_tool("archive", "verify", url)["problems"] == []
    listed = json.loads(headrace("archive", "list", url, "--json").stdout)
    assert {each["server"] for each in listed} == {promoted["server"]}

    (tmp_path / "found-later").rename(tmp_path / "data")
    result = headrace("serve", *configure(tmp_path, url), "-p", "-1")
    assert result.returncode == 1
    assert "newer groups of another server" in result.stdout + result.stderr
    shutil.rmtree(home)
    run_tool("archive", "restore", url, tmp_path / "restored")
    logs = tmp_path / "logs"
    logs.mkdir()
    with serving(logs, "-js", "-sd", str(tmp_path / "restored")) as server, Client(server.port) as client:
        assert client.api("STREAM.INFO.S")["state"]["messages"] == 6
