"""The INFO line, with nats-server's fields in nats-server's order."""

from __future__ import annotations

import platform
import secrets
from base64 import b32encode
from typing import Any

from headrace import API_LEVEL, COMPATIBLE_VERSION
from headrace.config.options import ServerOptions
from headrace.protocol import server_lines

PROTOCOL_VERSION = 1


class InfoTemplate:
    """The part of INFO that is the same for every client of a listener."""

    __slots__ = ("_allows_no_auth", "_fields", "_is_websocket", "_options", "_tls", "_verify")

    def __init__(
        self,
        options: ServerOptions,
        server_id: str,
        server_name: str,
        host: str,
        port: int,
        *,
        tls: bool | None = None,
        verify: bool | None = None,
        no_auth_user: str = "",
    ) -> None:
        """`tls` and `verify` default to the options; `no_auth_user`: the user of clients without credentials."""
        self._options = options
        self._tls = options.tls_enabled if tls is None else tls
        self._verify = options.tls_files.verify if verify is None else verify
        self._allows_no_auth = bool(no_auth_user)
        self._is_websocket = tls is not None
        self._fields: dict[str, Any] = {
            "server_id": server_id,
            "server_name": server_name,
            "version": COMPATIBLE_VERSION,
            "proto": PROTOCOL_VERSION,
            "go": f"python{platform.python_version()}",
            "host": host,
            "port": port,
            "headers": True,
        }

    def render(
        self,
        cid: int,
        client_ip: str,
        *,
        account: str = "",
        is_system_account: bool = False,
        lame_duck: bool = False,
        nonce: str = "",
        max_payload: int = 0,
    ) -> bytes:
        """Render INFO for one client; `account` is set only for a client that is connected."""
        options = self._options
        fields = dict(self._fields)
        if (options.auth_required and not self._allows_no_auth) or (account and options.has_credentials):
            fields["auth_required"] = True
        if self._tls:
            fields[
                "tls_available" if options.allow_non_tls and not self._is_websocket else "tls_required"
            ] = True
        if self._verify:
            fields["tls_verify"] = True
        fields["max_payload"] = max_payload or options.max_payload
        if options.jetstream:
            fields["jetstream"] = True
        fields["client_id"] = cid
        fields["client_ip"] = client_ip
        if nonce:
            fields["nonce"] = nonce
        if options.domain:
            fields["domain"] = options.domain
        if lame_duck:
            fields["ldm"] = True
        if account:
            fields["connect_info"] = True
            fields["remote_account"] = account
            if is_system_account:
                fields["acc_is_sys"] = True
        if options.jetstream:
            fields["api_lvl"] = API_LEVEL
        return server_lines.encode_info(fields)


def make_server_id() -> str:
    """Create a new server id in the form that clients know: 56 characters that start with N."""
    return "N" + b32encode(secrets.token_bytes(35)).decode()[:55]
