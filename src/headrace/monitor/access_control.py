"""Access control over HTTP: which requests may see message contents, and which may change anything.

As in nats-server, reading statistics requires no authentication. Message contents are shown to the admin and, if the
server itself requires no authentication, to requests whose `Host` is this machine's name or an address; this excludes
foreign pages that resolve their own name to this address (DNS rebinding). Changes always require the admin token, and
must come from this page or from no page at all.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable

from headrace.config.options import ServerOptions
from headrace.monitor.http import HttpRequest


class AccessControl:
    """The access rules of one server; `get_options` returns the current options, which a reload changes."""

    def __init__(self, get_options: Callable[[], ServerOptions]) -> None:
        self._get_options = get_options

    @property
    def has_admin_token(self) -> bool:
        """Whether the server has an admin token."""
        return bool(self._get_options().http_admin_token)

    def is_admin(self, request: HttpRequest) -> bool:
        """Whether the request has the admin token, in a header that no other site can add."""
        scheme, _, provided = request.headers.get("authorization", "").partition(" ")
        token = self._get_options().http_admin_token
        if not token or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(provided.strip().encode("latin-1", "replace"), token.encode())

    def may_read(self, request: HttpRequest) -> bool:
        """Whether the request may see message contents."""
        options = self._get_options()
        is_open = not (options.has_credentials or options.tls_verify)
        return self.is_admin(request) or (is_open and self._is_local_host(request))

    def may_act(self, request: HttpRequest) -> bool:
        """Whether the request may change something."""
        return self.is_admin(request) and self._is_same_origin(request)

    def _is_local_host(self, request: HttpRequest) -> bool:
        host = request.headers.get("host", "")
        name = host[1 : host.find("]")] if host.startswith("[") else host.rpartition(":")[0] or host
        return not host or name in ("localhost", self._get_options().http_host) or _is_address(name)

    def _is_same_origin(self, request: HttpRequest) -> bool:
        origin = request.headers.get("origin", "")
        site = request.headers.get("sec-fetch-site", "none")
        same = not origin or origin.partition("://")[2] == request.headers.get("host", "")
        return same and site in ("same-origin", "none")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
