"""The image that `deploy/Dockerfile` describes runs as `docs/how-to/run-in-a-container.md` says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from pathlib import Path

import bcrypt
import nats
import nats.errors
import pytest

from headrace.client import connect
from image.build import ROOT, Image
from image.conftest import give_to_user
from image.container import Container, Mount, RunOptions, running
from support.certificate_authority import Authority
from support.identities import Key

READY = "Server is ready"
PASSWORD = "correct horse"
TMP = Mount("tmpfs", "/tmp", "mode=1777")


async def publish(container: Container, count: int, **options: object) -> None:
    async with await connect(container.url, **options) as nc:
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["orders.>"])
        for number in range(count):
            await js.publish("orders.new", b"%d" % number)


async def count_messages(container: Container) -> int:
    async with await connect(container.url) as nc:
        return (await nc.jetstream().stream_info("S")).state.messages


def read_status(container: Container) -> dict[str, str]:
    """Return what the kernel knows about process 1."""
    lines = Path(f"/proc/{container.pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def test_it_starts_with_its_own_configuration(image: Image, volume: str, tmp_path: Path) -> None:
    with running(image, tmp_path, RunOptions(mounts=[Mount(volume, "/data")])) as container:
        container.wait_for(READY)
        assert "Core:     compiled" in container.log
        await publish(container, 3)
        assert container.get("/healthz")[0] == 200
        assert "headrace_healthy 1" in container.get("/metrics")[1]
        assert json.loads(container.get("/varz")[1])["jetstream"]["config"]["store_dir"].startswith("/data")
        assert container.is_healthy()
        checked = container.execute("headrace", "server", "check", "connection")
        assert checked.returncode == 0, checked.stderr
        assert container.execute("headrace", "stream", "ls").stdout.count("S") >= 1


def test_it_runs_without_privileges_as_process_1(image: Image, volume: str, tmp_path: Path) -> None:
    with running(image, tmp_path, RunOptions(mounts=[Mount(volume, "/data")])) as container:
        container.wait_for(READY)
        status = read_status(container)
        assert status["Name"] == "headrace"
        assert status["Uid"].split() == status["Gid"].split() == ["10001"] * 4
        assert status["NSpid"].split()[-1] == "1"
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
        assert container.execute("id", "-un").stdout == "headrace\n"


@pytest.mark.parametrize("mounts", [[], [TMP]], ids=["without tmpfs", "with tmpfs"])
async def test_it_runs_with_a_read_only_root(
    image: Image, volume: str, tmp_path: Path, mounts: list[Mount]
) -> None:
    options = RunOptions(mounts=[Mount(volume, "/data"), *mounts], read_only=True)
    with running(image, tmp_path, options) as container:
        container.wait_for(READY)
        assert "Read-only file system" in container.execute("touch", "/etc/x").stderr
        await publish(container, 3)
        assert container.is_healthy()
        assert container.execute("headrace", "server", "check", "connection").returncode == 0
        assert container.stop() == 0


def test_its_ports_are_those_that_it_exposes(image: Image, volume: str, tmp_path: Path) -> None:
    with running(image, tmp_path, RunOptions(mounts=[Mount(volume, "/data")])) as container:
        container.wait_for(READY)
        listening = {int(port) for port in re.findall(r" on 0\.0\.0\.0:(\d+)", container.log)}
        assert listening == set(image.ports)
        assert image.volumes == ["/data"]


@pytest.mark.parametrize("how", ["docker stop", "SIGTERM", "SIGKILL"])
async def test_data_survive_a_restart(image: Image, volume: str, tmp_path: Path, how: str) -> None:
    options = RunOptions(mounts=[Mount(volume, "/data")], read_only=True)
    with running(image, tmp_path, options) as first:
        first.wait_for(READY)
        await publish(first, 100)
        if how == "docker stop":
            assert first.stop() == 0
            assert "Server Exiting" in first.log
        elif how == "SIGTERM":
            assert first.stop(signal.SIGTERM) == 0
        else:
            first.kill()
    with running(image, tmp_path, options) as second:
        second.wait_for(READY)
        assert await count_messages(second) == 100


async def test_docker_stop_closes_clients_before_docker_kills(
    image: Image, volume: str, tmp_path: Path
) -> None:
    announced = asyncio.Event()

    async def on_lame_duck() -> None:
        announced.set()

    with running(image, tmp_path, RunOptions(mounts=[Mount(volume, "/data")])) as container:
        container.wait_for(READY)
        connections = [
            await nats.connect(container.url, allow_reconnect=False, lame_duck_mode_cb=on_lame_duck)
            for _ in range(3)
        ]
        assert await asyncio.to_thread(container.stop) == 0
        assert announced.is_set()
        for each in connections:
            await each.close()


def test_a_server_that_does_not_answer_is_unhealthy(image: Image, volume: str, tmp_path: Path) -> None:
    with running(image, tmp_path, RunOptions(mounts=[Mount(volume, "/data")])) as container:
        container.wait_for(READY)
        assert container.is_healthy()
        container.signal(signal.SIGSTOP)
        assert not container.is_healthy()
        container.signal(signal.SIGCONT)
        assert container.is_healthy()


def make_production(tmp_path: Path) -> tuple[Authority, list[Mount]]:
    """Return an authority and the mounts of the documented command: the server's certificate and its key."""
    authority = Authority(tmp_path)
    give_to_user(authority.key)
    os.chmod(authority.key, 0o400)
    return authority, [
        Mount(authority.cert, "/etc/headrace/server.pem", "ro"),
        Mount(authority.key, "/etc/headrace/server.key", "ro"),
    ]


async def test_it_runs_its_production_configuration(image: Image, volume: str, tmp_path: Path) -> None:
    """Unchanged: nobody knows the passwords of this file."""
    authority, mounts = make_production(tmp_path)
    options = RunOptions(
        arguments=["-c", "/etc/headrace/production.conf"],
        mounts=[Mount(volume, "/data"), *mounts],
        read_only=True,
    )
    login = {"tls": authority.context(), "tls_hostname": "localhost", "allow_reconnect": False}
    with running(image, tmp_path, options) as container:
        container.wait_for(READY)
        assert (Path(volume) / "headrace").is_dir()  # /var/lib/headrace is the volume
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await nats.connect(container.url, user="operator", password=PASSWORD, **login)
        # Monitoring is for this container only, which is enough for the health check.
        assert container.is_healthy()
        with pytest.raises(OSError, match="refused"):
            container.get("/healthz")
        assert container.stop() == 0


async def test_a_copy_of_it_with_own_passwords_and_reachable_monitoring(
    image: Image, volume: str, tmp_path: Path
) -> None:
    authority, mounts = make_production(tmp_path)
    text = (ROOT / "deploy" / "production.conf").read_text()
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    text = re.sub(r"\$2b\$12\$[./\w]{53}", lambda _: hashed, text).replace("127.0.0.1:8222", "0.0.0.0:8222")
    config = tmp_path / "mine.conf"
    config.write_text(text + "\nallow_insecure: true\n")
    mounts += [Mount(volume, "/data"), Mount(str(config), "/etc/headrace/mine.conf", "ro")]
    options = RunOptions(arguments=["-c", "/etc/headrace/mine.conf"], mounts=mounts)
    login = {"tls": authority.context(), "tls_hostname": "localhost", "allow_reconnect": False}
    with running(image, tmp_path, options) as container:
        container.wait_for(READY)
        await publish(container, 3, user="operator", password=PASSWORD, **login)
        async with await connect(container.url, user="producer", password=PASSWORD, **login) as nc:
            assert (await nc.jetstream().publish("orders.new", b"4")).seq == 4
            with pytest.raises(nats.errors.Error):
                await nc.jetstream().publish("other", b"", timeout=1)
        assert container.get("/healthz")[0] == 200
        assert container.is_healthy()
        with pytest.raises(
            nats.errors.Error, match="Authorization Violation"
        ):  # clients need a user all the same
            await nats.connect(container.url, **login)


async def test_users_may_have_nkeys(image: Image, volume: str, tmp_path: Path) -> None:
    key, config = Key("U"), tmp_path / "nkeys.conf"
    config.write_text(
        f'listen: "0.0.0.0:4222"\njetstream {{ store_dir: "/data" }}\n'
        f"authorization {{ users: [{{ nkey: {key.public} }}] }}\n"
    )
    (tmp_path / "seed").write_text(key.seed)
    options = RunOptions(
        arguments=["-c", "/nkeys.conf"],
        mounts=[Mount(volume, "/data"), Mount(str(config), "/nkeys.conf", "ro")],
    )
    with running(image, tmp_path, options) as container:
        container.wait_for(READY)
        await publish(container, 3, nkeys_seed=str(tmp_path / "seed"))
        with pytest.raises(nats.errors.Error):
            await nats.connect(container.url, allow_reconnect=False)


async def test_the_configuration_is_reloaded(image: Image, volume: str, tmp_path: Path) -> None:
    """As `docker kill --signal HUP` and `kubectl exec ... headrace serve --signal reload=1` do."""
    folder = tmp_path / "conf"
    folder.mkdir()
    shutil.copy(ROOT / "deploy" / "container.conf", folder / "headrace.conf")
    mounts = [Mount(volume, "/data"), Mount(str(folder), "/etc/headrace", "ro")]
    with running(image, tmp_path, RunOptions(mounts=mounts, read_only=True)) as container:
        container.wait_for(READY)
        container.signal(signal.SIGHUP)
        container.wait_for("Reloaded server configuration")
        lines = container.log.count("Reloaded server configuration")
        done = container.execute("headrace", "serve", "--signal", "reload=1")
        assert done.returncode == 0, done.stderr
        while container.log.count("Reloaded server configuration") == lines:
            await asyncio.sleep(0.01)


def test_a_volume_that_it_may_not_write_is_reported(image: Image, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()  # as `docker run -v "$PWD/data:/data"` makes it: it belongs to root
    mounts = [Mount(str(tmp_path / "data"), "/data")]
    with running(image, tmp_path, RunOptions(mounts=mounts)) as container:
        assert container.wait() != 0
        assert "Permission denied" in container.log
        assert "Traceback" not in container.log
