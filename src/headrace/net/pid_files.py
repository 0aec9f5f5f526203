"""The pid file and the ports file of a running server.

Launchers wait for them, so each appears complete or not at all, and both are removed when the server stops.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from headrace.config.options import OptionsError, ServerOptions

#: Launchers look for nats-server's file name.
PORTS_FILE = "nats-server_{pid}.ports"


class PidAndPortsFiles:
    """Writes the files named in the options, and removes them again."""

    def __init__(self, options: ServerOptions) -> None:
        self._pid_file = Path(options.pid_file) if options.pid_file else None
        self._ports_dir = Path(options.ports_file_dir) if options.ports_file_dir else None
        self._written_paths: list[Path] = []

    def write(self, *, nats: list[str], monitoring: list[str], websocket: list[str] | None = None) -> None:
        if self._pid_file is not None:
            self._write(self._pid_file, str(os.getpid()))
        if self._ports_dir is not None:
            ports = {"nats": nats, "monitoring": monitoring, "cluster": [], "websocket": websocket or []}
            self._write(self._ports_dir / PORTS_FILE.format(pid=os.getpid()), json.dumps(ports))

    def remove(self) -> None:
        for path in self._written_paths:
            path.unlink(missing_ok=True)
        self._written_paths.clear()

    def _write(self, path: Path, text: str) -> None:
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise OptionsError(f"cannot write {str(path)!r}: {error}") from error
        self._written_paths.append(path)
