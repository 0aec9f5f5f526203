"""Reads a Dockerfile into stages of steps, and finds the files that `docker build` would send.

Owns the part of the syntax that `deploy/Dockerfile` uses. Invariant: every instruction is understood or an error, so that
a change of the Dockerfile cannot be skipped without notice. Must not know how a step is executed.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_STEPS = ("RUN", "COPY", "WORKDIR", "ARG", "ENV", "USER")
_FLAG = re.compile(r"--([\w-]+)=(\S+)\s+")


class UnknownSyntax(ValueError):
    """A line that this reader does not understand."""


@dataclass(frozen=True)
class Step:
    """One instruction that changes the file system or the environment of a stage."""

    name: str
    text: str


@dataclass
class Stage:
    """The instructions between two `FROM`, and the settings that the image has if the stage is the last one."""

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)
    entry_point: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health_check: list[str] = field(default_factory=list)
    health_timeout_s: int = 30
    stop_signal: str = "SIGTERM"
    volumes: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace `$NAME` and `${NAME}`; a name without a value becomes empty."""
    return _VARIABLE.sub(lambda found: values.get(found[1] or found[2], ""), text)


def parse_assignments(text: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the names and values of `ENV A=1 B=2`."""
    pairs = [part.partition("=") for part in shlex.split(substitute(text, values))]
    if any(not separator for _, separator, _ in pairs):
        raise UnknownSyntax(f"ENV {text}: write NAME=value")
    return {name: value for name, _, value in pairs}


def parse_dockerfile(text: str) -> list[Stage]:
    """Return the stages; the last one is the image."""
    stages: list[Stage] = []
    arguments: dict[str, str] = {}
    for name, rest in _iter_instructions(text):
        if name == "FROM":
            base, _, alias = substitute(rest, arguments).partition(" AS ")
            stages.append(Stage(base.strip(), alias.strip()))
        elif not stages:
            if name != "ARG":
                raise UnknownSyntax(f"{name} before the first FROM")
            arguments |= parse_assignments(rest, arguments)
        elif name in _STEPS:
            stages[-1].steps.append(Step(name, rest))
        else:
            _apply_setting(stages[-1], name, rest)
    return stages


def _iter_instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        name, _, rest = line.strip().partition(" ")
        if "<<" in rest:
            raise UnknownSyntax(f"a here-document: {line!r}")
        yield name.upper(), re.sub(r"\s+", " ", rest.strip())


def _apply_setting(stage: Stage, name: str, rest: str) -> None:
    match name:
        case "ENTRYPOINT":
            stage.entry_point = parse_command(rest)
        case "CMD":
            stage.command = parse_command(rest)
        case "VOLUME":
            stage.volumes += rest.split()
        case "EXPOSE":
            stage.ports += map(int, rest.split())
        case "STOPSIGNAL":
            stage.stop_signal = rest
        case "HEALTHCHECK":
            _apply_health_check(stage, rest)
        case _:
            raise UnknownSyntax(f"{name} {rest}")


def _apply_health_check(stage: Stage, rest: str) -> None:
    flags = dict(_FLAG.findall(rest))
    name, _, command = _FLAG.sub("", rest).partition(" ")
    timeout = re.fullmatch(r"(\d+)s", flags.get("timeout", "30s"))
    if name != "CMD" or timeout is None:
        raise UnknownSyntax(f"HEALTHCHECK {rest}")
    stage.health_check, stage.health_timeout_s = parse_command(command), int(timeout[1])


def parse_command(text: str) -> list[str]:
    """Return the words of `["a", "b"]`, or a shell with the text."""
    return [str(word) for word in json.loads(text)] if text.startswith("[") else ["/bin/sh", "-c", text]


def parse_copy(text: str) -> tuple[str, list[str], str]:
    """Return the stage to copy from ("" for the build context), the sources and the target of `COPY`."""
    flags = dict(_FLAG.findall(text))
    if flags.keys() - {"from"}:
        raise UnknownSyntax(f"COPY {text}")
    *sources, target = _FLAG.sub("", text).split()
    return flags.get("from", ""), sources, target


def list_context(root: Path) -> list[Path]:
    """Return the files, relative to the root, that `.dockerignore` lets `docker build` send."""
    lines = (root / ".dockerignore").read_text().splitlines()
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    wanted = {line[1:].split("/")[0] for line in patterns if line.startswith("!")}
    tops = [root / name for name in sorted(wanted)] if "*" in patterns else sorted(root.iterdir())
    found = [each for top in tops for each in (sorted(top.rglob("*")) if top.is_dir() else [top])]
    paths = [each.relative_to(root) for each in found if not each.is_dir()]
    return [path for path in paths if is_sent(path, patterns)]


def is_sent(path: Path, patterns: list[str]) -> bool:
    """Whether the last pattern that matches the path or a folder above it includes it."""
    sent = True
    candidates = [path, *list(path.parents)[:-1]]
    for pattern in patterns:
        is_exception = pattern.startswith("!")
        if any(_matches(candidate, pattern.removeprefix("!")) for candidate in candidates):
            sent = is_exception
    return sent


def _matches(path: Path, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch.fnmatchcase(path.name, pattern.removeprefix("**/"))
    parts, wanted = path.parts, pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
