"""Options of the archive: the block `archive` of `jetstream`."""

from __future__ import annotations

import re
from dataclasses import dataclass

LOCAL, REMOTE = "local", "remote"
_SCHEMES = ("s3", "gs", "az", "file", "nats")
_NATS_URL = re.compile(r"nats://[^/?@]+/[^/.*>\s\\?]+(\?domain=[^&]+)?")
_FORMS = "s3://, gs:// or az://BUCKET/PREFIX, file:///DIRECTORY, or nats://HOST,HOST,HOST/STREAM"


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """Where and how the journal is archived; no URL: not at all."""

    url: str = ""
    ack: str = LOCAL
    group_bytes: int = 4 << 20
    group_delay_s: float = 0.05
    max_lag_s: float = 30.0
    keep_s: float = 7 * 86400.0
    local_bytes: int = 0
    takeover_after_s: float = 3.0

    def find_error(self, has_store_dir: bool) -> str:
        """Return what is wrong with these options; empty if nothing is."""
        scheme, separator, _ = self.url.partition("://")
        if not self.url:
            return f"archive requires a url: {_FORMS}"
        if not separator or scheme not in _SCHEMES:
            return f"invalid archive url {self.url!r}: use {_FORMS}"
        place, _, query = self.url.partition("://")[2].partition("?")
        if "@" in place.partition("/")[0] + query:  # also in an endpoint: the url is logged
            return "archive: credentials come from the environment, never from the url"
        if scheme == "nats" and not _NATS_URL.fullmatch(self.url):
            return f"invalid archive url {self.url!r}: use nats://HOST:PORT,HOST:PORT,HOST:PORT/STREAM"
        if scheme == "file" and not place.startswith("/"):
            return f"invalid archive url {self.url!r}: use file:///DIRECTORY, with three slashes"
        if self.ack not in (LOCAL, REMOTE):
            return f"invalid archive ack {self.ack!r}: use local or remote"
        if self.local_bytes:
            return "archive: local_bytes is not supported yet: remove it, all segments stay on the local disk"
        return self._find_limit_error(has_store_dir)

    def _find_limit_error(self, has_store_dir: bool) -> str:
        if not 64 << 10 <= self.group_bytes <= 256 << 20:
            return f"invalid archive group_bytes {self.group_bytes}: use 64 KiB to 256 MiB"
        if not 0.001 <= self.group_delay_s <= 60:
            return f"invalid archive group_delay {self.group_delay_s:g} s: use 1ms to 60s"
        if self.max_lag_s <= 0:
            return f"invalid archive max_lag {self.max_lag_s:g} s: must be greater than 0"
        if self.keep_s < 60:
            return f"invalid archive keep {self.keep_s:g} s: must be at least a minute"
        if not 1 <= self.takeover_after_s <= 3600:
            return f"invalid archive takeover_after {self.takeover_after_s:g} s: use 1s to 1h"
        if not has_store_dir:
            return "archive requires JetStream and a store directory: add store_dir"
        return ""
