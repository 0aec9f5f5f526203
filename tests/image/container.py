"""Runs an image as a container engine would: in its own namespaces, as its user, as process 1, without privileges.

Owns namespaces, mounts and the network of one container. The caller must be root in a network namespace of its own
(`make test-image` makes one), so that the containers' addresses exist for these tests only. Invariant: a container is
gone, with everything in it, when its context ends.

Not as in an engine: there are no seccomp filter, no cgroups and no user namespace.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from image.build import Image

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0  # of `docker stop`
#: The address of this network namespace for all containers.
HOST_ADDRESS = "10.88.0.1"
#: Makes the root of a container and replaces itself with its program. `read` waits until the network is set up.
#: Arguments: root file system, "ro" or "rw", number of mounts, for each of them options, source and target; command.
_START = """
set -e
root=$1; mode=$2; count=$3; shift 3
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
cd /mnt/root
mount -t proc proc proc
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/shm
mount -t tmpfs -o mode=1777 tmpfs dev/shm
for device in null zero full random urandom; do touch "dev/$device"; mount --bind "/dev/$device" "dev/$device"; done
while [ "$count" -gt 0 ]; do
  [ -e "./$3" ] || if [ -f "$2" ]; then mkdir -p "./${3%/*}"; touch "./$3"; else mkdir -p "./$3"; fi
  if [ "$2" = tmpfs ]; then mount -t tmpfs -o "$1" tmpfs "./$3"; else mount -o "bind,$1" "$2" "./$3"; fi
  shift 3; count=$((count - 1))
done
[ "$mode" = rw ] || mount -o remount,bind,ro .
read -r _
pivot_root . .
umount -l .
cd /
exec "$@" </dev/null
"""
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Mount:
    """A volume. Its source is a file or folder of this machine, or "tmpfs"."""

    source: str
    target: str
    options: str = "rw"


@dataclass
class RunOptions:
    """What `docker run` gets as flags. An empty `entry_point` or `arguments` means that of the image."""

    arguments: Sequence[str] = ()
    entry_point: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    user: str = ""
    read_only: bool = False


class Container:
    """A running container."""

    def __init__(self, image: Image, options: RunOptions, folder: Path) -> None:
        self.image = image
        self._options = options
        number = next(_numbers)
        self._log_path = folder / f"container-{number}.log"
        self.address = f"10.88.{number}.2"
        self._process = self._start()
        self.pid = self._find_first_process()
        self._connect(f"hr{number}", f"10.88.{number}.1")
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.close()

    def _start(self) -> subprocess.Popen[bytes]:
        mounts = [
            word for mount in self._options.mounts for word in (mount.options, mount.source, mount.target)
        ]
        entry_point = self._options.entry_point or self.image.entry_point
        arguments = self._options.arguments or self.image.command
        namespaces = ["--mount", "--pid", "--net", "--uts", "--ipc", "--fork"]
        start = ["sh", "-c", _START, "sh", self.image.rootfs, "ro" if self._options.read_only else "rw"]
        program = [*self._drop_privileges(), *entry_point, *arguments]
        with self._log_path.open("wb") as log:
            return subprocess.Popen(
                ["unshare", *namespaces, *start, str(len(self._options.mounts)), *mounts, *program],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )

    def _drop_privileges(self) -> list[str]:
        user, _, group = (self._options.user or self.image.user).partition(":")
        variables = {"HOME": self._find_home(user), **self.image.environment, **self._options.environment}
        flags = [f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
        drop = ["setpriv", *flags, "--bounding-set=-all", "--inh-caps=-all"]
        return [*drop, "env", "-i", *(f"{name}={value}" for name, value in variables.items())]

    def _find_home(self, user: str) -> str:
        lines = Path(self.image.rootfs, "etc/passwd").read_text().splitlines()
        return next((words[5] for words in (line.split(":") for line in lines) if words[2] == user), "/")

    def _find_first_process(self) -> int:
        parent = self._process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children")
        _wait_until(lambda: children.read_text().strip() != "", "the container has no process")
        return int(children.read_text().split()[0])

    def _connect(self, name: str, gateway: str) -> None:
        """Give the container a network interface whose other end is here."""
        inside = ["nsenter", f"--target={self.pid}", "--net"]
        _wait_until(lambda: _has_own_network(self.pid), "no network namespace")
        for command in (
            ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid)],
            ["ip", "address", "add", f"{gateway}/24", "dev", name],
            ["ip", "link", "set", name, "up"],
            ["ip", "address", "replace", f"{HOST_ADDRESS}/32", "dev", "lo"],
            [*inside, "ip", "link", "set", "lo", "up"],
            [*inside, "ip", "address", "add", f"{self.address}/24", "dev", "eth0"],
            [*inside, "ip", "link", "set", "eth0", "up"],
            [*inside, "ip", "route", "add", "default", "via", gateway],
        ):
            subprocess.run(command, check=True)

    # What a user sees

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    @property
    def url(self) -> str:
        return f"nats://{self.address}:4222"

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, text: str) -> None:
        """Wait until the log contains a text."""
        _wait_until(lambda: text in self.log or not self.is_running, f"{text!r} is not in the log")
        assert text in self.log, self.log

    def execute(self, *command: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a program in the container, with its user and environment, as `docker exec` does."""
        namespaces = ["--mount", "--pid", "--net", "--uts", "--ipc", "--root", "--wd"]
        return subprocess.run(
            ["nsenter", f"--target={self.pid}", *namespaces, *self._drop_privileges(), *command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def is_healthy(self) -> bool:
        """Run the health check of the image once."""
        try:
            timeout_s = self.image.health_timeout_s
            return self.execute(*self.image.health_check, timeout_s=timeout_s).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def get(self, path: str, port: int = 8222) -> tuple[int, str]:
        """Return status and body of an HTTP page, requested from outside the container."""
        try:
            with urllib.request.urlopen(f"http://{self.address}:{port}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to process 1 of the container."""
        os.kill(self.pid, number)

    def stop(self, number: signal.Signals | None = None, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send the image's stop signal, or another; return the exit code. Raises if an engine would have to kill it."""
        self.signal(number or signal.Signals[self.image.stop_signal])
        return self._process.wait(timeout_s)

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> int:
        """Wait for the container to end; return its exit code."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """End the container at once, with everything in it."""
        if self.is_running:
            self.signal(signal.SIGKILL)  # the kernel ends all processes of the namespace with process 1
        self._process.wait()


@contextmanager
def running(image: Image, folder: Path, options: RunOptions | None = None) -> Iterator[Container]:
    """Run a container; yield it when its program has been started."""
    container = Container(image, options or RunOptions(), folder)
    try:
        yield container
    finally:
        container.kill()


def _has_own_network(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def _wait_until(is_true: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_true():
        assert time.monotonic() < deadline, problem
        time.sleep(0.01)
