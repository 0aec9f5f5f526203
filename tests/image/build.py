"""Builds the root file system of the image without a container engine: `python -m image.build FOLDER`.

Executes the steps of `deploy/Dockerfile` in their order, each `RUN` in a chroot. In place of the base image
`python:<version>-slim` it takes the same Debian release with Debian's Python of that version. Needs root and debootstrap.

Invariant: what the build alone uses (name servers, pip's settings and certificates of this machine) is mounted for one
step and never part of the result.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from image.dockerfile import (
    Stage,
    Step,
    UnknownSyntax,
    list_context,
    parse_assignments,
    parse_copy,
    parse_dockerfile,
    substitute,
)

ROOT = Path(__file__).parents[2]
#: The Debian release of `python:<version>-slim`, whose own Python has the same version.
DEBIAN_RELEASES = {"3.11": "bookworm", "3.13": "trixie"}
#: The official image has these packages besides Debian's minimum; there, Python and its headers are in /usr/local.
_PACKAGES = ("ca-certificates", "netbase", "tzdata", "python3-dev", "python3-venv")
_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Empty in an image; container engines mount their own.
_RUNTIME_FILES = ("etc/resolv.conf", "etc/hosts", "etc/hostname")
#: Settings of this machine that are files or folders: the variable, and where a step of the build finds them.
_BUILD_SETTINGS = {
    "PIP_CONFIG_FILE": "/run/build/pip.conf",
    "PIP_CERT": "/run/build/ca.pem",
    "PIP_FIND_LINKS": "/run/build/wheels",
}
_BUILD_VARIABLES = re.compile(r"PIP_\w+|https?_proxy|no_proxy", re.IGNORECASE)
#: Runs in a mount namespace of its own, so that nothing stays mounted. Arguments: root, folder of settings, command.
_RUN_IN_CHROOT = """
set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -o bind,ro /etc/resolv.conf "$1/etc/resolv.conf"
mount -o bind,ro /etc/hosts "$1/etc/hosts"
mount -t tmpfs tmpfs "$1/run"
cp -r "$2" "$1/run/build"
root=$1; shift 2
exec chroot "$root" "$@"
"""


@dataclass
class Image:
    """A root file system and the settings to run it with."""

    rootfs: str
    environment: dict[str, str]
    user: str
    entry_point: list[str]
    command: list[str]
    health_check: list[str]
    health_timeout_s: int
    stop_signal: str
    volumes: list[str]
    ports: list[int]

    @classmethod
    def load(cls, folder: Path) -> Image:
        return cls(**json.loads((folder / "image.json").read_text()))

    def save(self, folder: Path) -> None:
        (folder / "image.json").write_text(json.dumps(asdict(self), indent=2) + "\n")


@dataclass
class StageBuild:
    """One stage while it is built."""

    rootfs: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    arguments: dict[str, str] = field(default_factory=dict)
    work_folder: str = "/"
    user: str = "0:0"

    def run(self, step: Step, stages: dict[str, StageBuild]) -> None:
        """Execute a step."""
        values = {**self.arguments, **self.environment}
        match step.name:
            case "ARG":
                self.arguments = parse_assignments(step.text, values) | self.arguments
            case "ENV":
                self.environment |= parse_assignments(step.text, values)
            case "USER":
                self.user = substitute(step.text, values)
            case "WORKDIR":
                self.work_folder = os.path.join(self.work_folder, substitute(step.text, values))
                self._locate(self.work_folder).mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(substitute(step.text, values), stages)
            case "RUN":
                if self.user != "0:0":
                    raise UnknownSyntax("RUN after USER")
                command = f"cd {self.work_folder} && {step.text}"
                run_in_chroot(self.rootfs, ["/bin/sh", "-c", command], values)

    def _locate(self, path: str) -> Path:
        return self.rootfs / os.path.join(self.work_folder, path).lstrip("/")

    def _copy(self, text: str, stages: dict[str, StageBuild]) -> None:
        stage, sources, target = parse_copy(text)
        for source in sources:
            if stage:
                found = stages[stage].rootfs / source.lstrip("/")
                subprocess.run(["cp", "-a", "-T", str(found), str(self._locate(target))], check=True)
            else:
                self._copy_context(Path(source), target)

    def _copy_context(self, source: Path, target: str) -> None:
        """Copy files of the build context. As in Docker they belong to root, and keep their permissions."""
        files = [path for path in list_context(ROOT) if path == source or source in path.parents]
        if not files:
            raise FileNotFoundError(f"COPY {source}: .dockerignore excludes it, or it does not exist")
        for path in files:
            place = (
                self._locate(target) if path == source else self._locate(target) / path.relative_to(source)
            )
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, place)
            os.chown(place, 0, 0)


def run_in_chroot(rootfs: Path, command: list[str], environment: dict[str, str]) -> None:
    """Run a command of a build, with this machine's network and settings of pip."""
    variables = {name: value for name, value in os.environ.items() if _BUILD_VARIABLES.fullmatch(name)}
    variables.setdefault("PIP_CONFIG_FILE", "/etc/pip.conf")
    with tempfile.TemporaryDirectory() as settings:
        for name, place in _BUILD_SETTINGS.items():
            source = Path(variables.pop(name, ""))
            if source.is_absolute() and source.exists():
                copy = shutil.copytree if source.is_dir() else shutil.copyfile
                copy(source, Path(settings) / Path(place).name)
                variables[name] = place
        subprocess.run(
            ["unshare", "--mount", "sh", "-c", _RUN_IN_CHROOT, "sh", str(rootfs), settings, *command],
            env={**variables, **environment, "DEBIAN_FRONTEND": "noninteractive"},
            check=True,
        )


def make_base(name: str, folder: Path) -> Path:
    """Return the root file system that stands for a base image; it is made once."""
    found = re.fullmatch(r"python:(\d+\.\d+)-slim", name)
    if found is None or found[1] not in DEBIAN_RELEASES:
        raise UnknownSyntax(f"FROM {name}: no Debian release is known whose Python is that of this image")
    version, release = found[1], DEBIAN_RELEASES[found[1]]
    base = folder / f"base-{release}"
    if base.exists():
        return base
    if shutil.which("debootstrap") is None:
        raise SystemExit("debootstrap is missing. On Debian: apt-get install debootstrap")
    unfinished = folder / f"base-{release}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    flags = ["--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    with (folder / "debootstrap.log").open("wb") as log:
        command = ["debootstrap", *flags, release, str(unfinished)]
        subprocess.run(command, check=True, stdout=log, stderr=log)
    for path in _RUNTIME_FILES:
        (unfinished / path).write_text("")
    for link in ("python", "python3"):
        (unfinished / "usr/local/bin" / link).symlink_to(f"/usr/bin/python{version}")
    unfinished.rename(base)
    return base


def build(folder: Path) -> Image:
    """Execute the Dockerfile; return the image, whose root file system is below the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    builds: dict[str, StageBuild] = {}
    stages = parse_dockerfile((ROOT / "deploy" / "Dockerfile").read_text())
    for stage in stages:
        rootfs = folder / (stage.name or "rootfs")
        shutil.rmtree(rootfs, ignore_errors=True)
        subprocess.run(["cp", "-a", str(make_base(stage.base, folder)), str(rootfs)], check=True)
        current = builds[stage.name] = StageBuild(rootfs)
        for step in stage.steps:
            print(f"{step.name} {step.text}", flush=True)
            current.run(step, builds)
    image = _make_image(stages[-1], current)
    image.save(folder)
    return image


def _make_image(stage: Stage, built: StageBuild) -> Image:
    return Image(
        rootfs=str(built.rootfs),
        environment=built.environment,
        user=built.user,
        entry_point=stage.entry_point,
        command=stage.command,
        health_check=stage.health_check,
        health_timeout_s=stage.health_timeout_s,
        stop_signal=stage.stop_signal,
        volumes=stage.volumes,
        ports=stage.ports,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the base, the stages and the result")
    image = build(parser.parse_args().folder.resolve())
    print(f"built {image.rootfs}")


if __name__ == "__main__":
    main()
