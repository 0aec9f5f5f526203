"""The manifests of `deploy/kubernetes` start the image, and their probes reach it.

Each test does what the kubelet would do with the StatefulSet: its volumes, user, security context and probes. There is
no cluster: schedulers, the volume's storage class, the Service, NetworkPolicy and PodMonitor are not tried.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
import yaml

from headrace.client import connect
from image.build import ROOT, Image
from image.container import Container, Mount, RunOptions, running

READY = "Server is ready"
FOLDER = ROOT / "deploy" / "kubernetes"
STATEFUL_SET, CONFIG_MAP = (
    yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) for name in ("statefulset", "configmap")
)
POD = STATEFUL_SET["spec"]["template"]["spec"]
(SPEC,) = POD["containers"]
PORTS = {port["name"]: port["containerPort"] for port in SPEC["ports"]}
#: users.conf as docs/how-to/run-in-kubernetes.md shows it.
USERS = re.search(
    r"# users\.conf\n(.*?)```", (ROOT / "docs/how-to/run-in-kubernetes.md").read_text(), re.DOTALL
)
LOGIN = {"user": "app", "password": "change-me"}


def make_config_volume(folder: Path) -> Mount:
    """Write the projected volume as the kubelet does: files are links into a folder that it replaces as a whole."""
    assert USERS is not None
    current = folder / "config" / "..2026"
    current.mkdir(parents=True)
    (folder / "config" / "..data").symlink_to("..2026")
    for name, text in {**CONFIG_MAP["data"], "users.conf": USERS[1]}.items():
        (current / name).write_text(text)
        (folder / "config" / name).symlink_to(f"..data/{name}")
    return Mount(str(folder / "config"), "", "ro")


def make_data_volume(folder: Path) -> Mount:
    """Make a volume that belongs to root and the pod's `fsGroup`, which may write."""
    path = folder / "data"
    path.mkdir(exist_ok=True)
    (path / "lost+found").mkdir(mode=0o700, exist_ok=True)  # as on a block device with ext4
    os.chown(path, 0, POD["securityContext"]["fsGroup"])
    path.chmod(0o2775)
    return Mount(str(path), "")


def read_options(volumes: dict[str, Mount]) -> RunOptions:
    """Return what the manifest says about the container."""
    security = POD["securityContext"]
    assert security["runAsNonRoot"]
    assert not SPEC["securityContext"]["allowPrivilegeEscalation"]
    assert SPEC["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounts = [
        Mount(volumes[each["name"]].source, each["mountPath"], volumes[each["name"]].options)
        for each in SPEC["volumeMounts"]
    ]
    return RunOptions(
        entry_point=SPEC.get("command", ()),
        arguments=SPEC.get("args", ()),
        environment={each["name"]: each["value"] for each in SPEC.get("env", ())},
        mounts=mounts,
        user=f"{security['runAsUser']}:{security['runAsGroup']}",
        read_only=SPEC["securityContext"]["readOnlyRootFilesystem"],
    )


@contextmanager
def running_pod(image: Image, folder: Path) -> Iterator[Container]:
    folder.mkdir(exist_ok=True)
    data = make_data_volume(folder.parent)
    volumes = {"data": data, "config": make_config_volume(folder), "tmp": Mount("tmpfs", "", "mode=1777")}
    with running(image, folder, read_options(volumes)) as container:
        container.wait_for(READY)
        yield container


def probe(container: Container, check: dict[str, Any]) -> bool:
    """Do what the kubelet does for a probe, from outside the container."""
    if "tcpSocket" in check:
        try:
            socket.create_connection((container.address, PORTS[check["tcpSocket"]["port"]]), 1).close()
        except OSError:
            return False
        return True
    page = check["httpGet"]
    try:
        status, _ = container.get(page["path"], PORTS[page["port"]])
    except OSError:
        return False
    return 200 <= status < 400


PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def test_the_probes_reach_the_server(image: Image, tmp_path: Path) -> None:
    with running_pod(image, tmp_path / "pod") as pod:
        assert {name: probe(pod, SPEC[name]) for name in PROBES} == dict.fromkeys(PROBES, True)
        pod.kill()
        assert {name: probe(pod, SPEC[name]) for name in PROBES} == dict.fromkeys(PROBES, False)


def test_the_pod_monitor_finds_metrics(image: Image, tmp_path: Path) -> None:
    (endpoint,) = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text())["spec"]["podMetricsEndpoints"]
    with running_pod(image, tmp_path / "pod") as pod:
        status, text = pod.get(endpoint["path"], PORTS[endpoint["port"]])
        assert status == 200
        assert "headrace_healthy 1" in text


async def test_clients_need_a_user_of_the_secret(image: Image, tmp_path: Path) -> None:
    with running_pod(image, tmp_path / "pod") as pod:
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await nats.connect(pod.url, allow_reconnect=False)
        async with await connect(pod.url, **LOGIN) as nc:
            assert (await nc.jetstream().account_info()).streams == 0


async def test_a_deleted_pod_stops_in_time_and_the_next_one_has_its_data(
    image: Image, tmp_path: Path
) -> None:
    with running_pod(image, tmp_path / "first") as pod:
        nc = await connect(pod.url, **LOGIN, allow_reconnect=False)
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        await js.publish("s", b"x")
        # A client is still connected.
        stopped = await asyncio.to_thread(pod.stop, None, POD["terminationGracePeriodSeconds"])
        assert stopped == 0
        await nc.close()
    with running_pod(image, tmp_path / "second") as pod:
        async with await connect(pod.url, **LOGIN) as nc:
            assert (await nc.jetstream().stream_info("S")).state.messages == 1


async def test_a_changed_secret_is_read_by_the_documented_command(image: Image, tmp_path: Path) -> None:
    with running_pod(image, tmp_path / "pod") as pod:
        config = tmp_path / "pod" / "config"
        (config / "..2027").mkdir()
        for name in ("headrace.conf", "users.conf"):
            text = (config / name).read_text().replace("change-me", "changed")
            (config / "..2027" / name).write_text(text)
        (config / "..next").symlink_to("..2027")
        (config / "..next").rename(config / "..data")
        done = pod.execute("headrace", "serve", "--signal", "reload=1")
        assert done.returncode == 0, done.stderr
        pod.wait_for("Reloaded server configuration")
        async with await connect(pod.url, user="app", password="changed"):
            pass
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await nats.connect(pod.url, **LOGIN, allow_reconnect=False)


def test_a_server_that_hangs_fails_its_liveness_probe(image: Image, tmp_path: Path) -> None:
    with running_pod(image, tmp_path / "pod") as pod:
        pod.signal(signal.SIGSTOP)
        assert not probe(pod, SPEC["livenessProbe"])
        pod.signal(signal.SIGCONT)
        assert probe(pod, SPEC["livenessProbe"])
