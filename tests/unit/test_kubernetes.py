"""The image and the Kubernetes manifests agree with each other and with the server.

`make test-deploy` checks the manifests against the schemas of Kubernetes; no test runs a cluster.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.durations import parse_duration_ns
from support.processes import headrace, serving

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDER = DEPLOY / "kubernetes"
KINDS = {
    "configmap": ("v1", "ConfigMap"),
    "kustomization": ("kustomize.config.k8s.io/v1beta1", "Kustomization"),
    "networkpolicy": ("networking.k8s.io/v1", "NetworkPolicy"),
    "podmonitor": ("monitoring.coreos.com/v1", "PodMonitor"),
    "service": ("v1", "Service"),
    "statefulset": ("apps/v1", "StatefulSet"),
}
MANIFESTS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))}
POD = MANIFESTS["statefulset"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
USERS = 'authorization { users: [{ user: app, password: "change-me" }] }\n'


def test_each_file_has_one_object_of_its_kind() -> None:
    assert {name: (text["apiVersion"], text["kind"]) for name, text in MANIFESTS.items()} == KINDS
    named = set(MANIFESTS) - {"kustomization"}
    assert {MANIFESTS[name]["metadata"]["name"] for name in named} == {"headrace"}


def test_kustomization_lists_files_that_exist_and_the_image_of_the_container() -> None:
    kustomization = MANIFESTS["kustomization"]
    assert {name.removesuffix(".yaml") for name in kustomization["resources"]} == set(KINDS) - {
        "kustomization",
        "podmonitor",
    }
    assert [image["name"] for image in kustomization["images"]] == [CONTAINER["image"]]


def test_all_selectors_select_the_pods() -> None:
    labels = POD["metadata"]["labels"]
    selectors = [
        MANIFESTS["service"]["spec"]["selector"],
        MANIFESTS["statefulset"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["networkpolicy"]["spec"]["podSelector"]["matchLabels"],
        MANIFESTS["podmonitor"]["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert labels[MANIFESTS["podmonitor"]["spec"]["jobLabel"]] == "headrace"  # as the alerts expect
    assert MANIFESTS["statefulset"]["spec"]["serviceName"] == MANIFESTS["service"]["metadata"]["name"]


def test_all_ports_are_those_of_the_container() -> None:
    assert PORTS == {"client": 4222, "monitor": 8222}
    service = MANIFESTS["service"]["spec"]["ports"]
    assert {port["targetPort"]: port["port"] for port in service} == PORTS
    probes = [CONTAINER[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    targets = [probe.get("httpGet") or probe["tcpSocket"] for probe in probes]
    policies = [port for rule in MANIFESTS["networkpolicy"]["spec"]["ingress"] for port in rule["ports"]]
    endpoints = MANIFESTS["podmonitor"]["spec"]["podMetricsEndpoints"]
    assert {target["port"] for target in [*targets, *policies, *endpoints]} == set(PORTS)
    assert {target["path"] for target in targets if "path" in target} == {"/varz"}


def test_probes_fit_a_waiting_standby_too() -> None:
    """It responds on the monitoring port, and must not get clients; a full disk is no reason for a restart."""
    assert CONTAINER["startupProbe"]["httpGet"] == CONTAINER["livenessProbe"]["httpGet"]
    assert CONTAINER["readinessProbe"]["tcpSocket"] == {"port": "client"}
    assert "publishNotReadyAddresses" not in MANIFESTS["service"]["spec"]


def test_what_is_mounted_exists() -> None:
    volumes = {volume["name"] for volume in POD["spec"]["volumes"]}
    claims = {claim["metadata"]["name"] for claim in MANIFESTS["statefulset"]["spec"]["volumeClaimTemplates"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert set(mounts) == volumes | claims
    assert mounts["config"] == "/etc/headrace"
    assert "VOLUME " + mounts["data"] in DOCKERFILE
    config = next(volume for volume in POD["spec"]["volumes"] if volume["name"] == "config")
    assert (
        config["projected"]["sources"][0]["configMap"]["name"] == MANIFESTS["configmap"]["metadata"]["name"]
    )


def test_the_pod_runs_as_the_user_of_the_image() -> None:
    security = POD["spec"]["securityContext"]
    user, group = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)[-1]
    assert (security["runAsUser"], security["runAsGroup"]) == (int(user), int(group))
    assert security["runAsNonRoot"] is True
    assert f"--uid {user} " in DOCKERFILE


def test_the_server_accepts_the_configuration(tmp_path: Path) -> None:
    text = MANIFESTS["configmap"]["data"]["headrace.conf"]
    (tmp_path / "users.conf").write_text(USERS)
    (tmp_path / "headrace.conf").write_text(text)
    done = headrace("serve", "-t", "-c", str(tmp_path / "headrace.conf"))
    assert done.returncode == 0, done.stderr
    duration = re.search(r'lame_duck_duration: "(\w+)"', text)
    assert duration is not None
    assert POD["spec"]["terminationGracePeriodSeconds"] * 10**9 > parse_duration_ns(duration[1])


def read_configurations() -> dict[str, str]:
    in_kubernetes = MANIFESTS["configmap"]["data"]["headrace.conf"].replace("include users.conf", USERS)
    return {"container": (DEPLOY / "container.conf").read_text(), "kubernetes": in_kubernetes}


@pytest.mark.parametrize("name", ["container", "kubernetes"])
def test_the_monitoring_port_is_reachable_from_outside_the_container(name: str, tmp_path: Path) -> None:
    text = read_configurations()[name].replace(":4222", ":-1").replace(":8222", ":-1")
    (tmp_path / "headrace.conf").write_text(text.replace("/data", str(tmp_path / "data")))
    with serving(tmp_path, "-c", str(tmp_path / "headrace.conf")) as server:
        assert "Starting http monitor on 0.0.0.0:" in server.log


def test_the_image_has_what_its_configurations_need() -> None:
    extras = re.search(r"^ARG EXTRAS=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert extras is not None
    assert {"server", "claims", "s3"} <= set(extras[1].split(","))
    for name in re.findall(r"^COPY (deploy/\S+)", DOCKERFILE, re.MULTILINE):
        assert (DEPLOY.parent / name).exists()
    assert "ln -s /data /var/lib/headrace" in DOCKERFILE
    assert 'store_dir: "/var/lib/headrace"' in (DEPLOY / "production.conf").read_text()


def test_docker_sends_what_the_image_is_built_from() -> None:
    lines = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    sent: list[Any] = [line[1:] for line in lines if line.startswith("!")]
    assert all((DEPLOY.parent / name).exists() for name in sent)
    assert {"src", "deploy", "setup.py", "pyproject.toml", "constraints.txt"} <= set(sent)
