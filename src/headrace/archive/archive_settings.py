"""What a server gives its archive: the settings, and where to report what an operator should know.

Owns nothing. Must not know configuration files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.archive.archive_identity import ArchiveIdentity
from headrace.archive.group_writer import BASE_BYTES, WriterSettings
from headrace.archive.server_leader import LeaderSettings

#: A base is made after this many bytes of groups: at a takeover, what follows it is replayed and sent again.
REMOTE_BASE_BYTES = 128 << 20
NO_TAKEOVERS = LeaderSettings()


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """The configured archive of a server."""

    url: str
    folder: Path
    server_name: str
    group_bytes: int
    group_delay_s: float
    max_lag_s: float
    keep_ns: int
    is_remote: bool = False  # acknowledge what is archived
    leader: LeaderSettings = NO_TAKEOVERS


def make_writer_settings(settings: ArchiveSettings, identity: ArchiveIdentity) -> WriterSettings:
    """Return the settings of the newest writer of this server."""
    return WriterSettings(
        identity.server_number,
        identity.writers[-1],
        settings.server_name,
        settings.group_bytes,
        base_bytes=REMOTE_BASE_BYTES if settings.is_remote else BASE_BYTES,
        keep_ns=settings.keep_ns,
    )


class ArchiveLog(Protocol):
    """Where the service reports what an operator should know."""

    def info(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
