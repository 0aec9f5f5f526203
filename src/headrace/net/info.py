"""What a server says of itself: the INFO line, with the reference's fields in the reference's order."""

from __future__ import annotations

import platform
from typing import Any

from headrace import API_LEVEL, COMPATIBLE_VERSION
from headrace.net.options import Options
from headrace.protocol import frames

PROTOCOL = 1


class Card:
    """The part of INFO that is the same for every client of a listener."""

    __slots__ = ("_fields", "_options")

    def __init__(self, options: Options, server_id: str, server_name: str, host: str, port: int) -> None:
        self._options = options
        self._fields: dict[str, Any] = {
            "server_id": server_id,
            "server_name": server_name,
            "version": COMPATIBLE_VERSION,
            "proto": PROTOCOL,
            "go": f"python{platform.python_version()}",
            "host": host,
            "port": port,
            "headers": True,
        }

    def line(self, cid: int, client_ip: str, *, account: str = "", lame_duck: bool = False) -> bytes:
        """INFO for one client; `account` is that of a client that is connected."""
        options = self._options
        fields = dict(self._fields)
        if options.auth_required or (account and options.has_credentials):
            fields["auth_required"] = True
        if options.tls_enabled:
            fields["tls_available" if options.allow_non_tls else "tls_required"] = True
        if options.tls_verify:
            fields["tls_verify"] = True
        fields["max_payload"] = options.max_payload
        if options.jetstream:
            fields["jetstream"] = True
        fields["client_id"] = cid
        fields["client_ip"] = client_ip
        if options.domain:
            fields["domain"] = options.domain
        if lame_duck:
            fields["ldm"] = True
        if account:
            fields["connect_info"] = True
            fields["remote_account"] = account
        if options.jetstream:
            fields["api_lvl"] = API_LEVEL
        return frames.info(fields)
