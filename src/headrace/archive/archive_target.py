"""Opens the target of an archive: an object store, a folder, or streams of a NATS cluster.

Owns the URLs of archives. Must not know what is stored there.
"""

from __future__ import annotations

from headrace.backup.target import BackupTarget, open_target

NATS_SCHEME = "nats://"


def open_archive(url: str) -> BackupTarget:
    """Open `nats://HOST,.../STREAM`, or whatever `open_target` opens."""
    if not url.startswith(NATS_SCHEME):
        return open_target(url)
    from headrace.archive.nats_objects import NatsObjects
    from headrace.archive.nats_streams import NatsStreams, parse_nats_url

    return BackupTarget(NatsObjects(NatsStreams(parse_nats_url(url))), "", url)
