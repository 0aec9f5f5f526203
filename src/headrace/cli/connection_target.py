"""Chooses server and credentials: flags first, then the environment, then a context of the `nats` tool.

When the server is given by a flag or an environment variable, the credentials of the selected context are not used:
they belong to another server. See ADR 81.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import contexts
from headrace.cli.exit_codes import USAGE_ERROR, CliError

if TYPE_CHECKING:
    from ssl import SSLContext

DEFAULT_SERVER = "nats://127.0.0.1:4222"
OPTIONS_PANEL = "Connection"


def _option(*names: str, help: str, metavar: str = "TEXT") -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=OPTIONS_PANEL, show_default=False)


#: Options of every command that talks to a server, by parameter name.
OPTIONS: dict[str, Any] = {
    "server": Annotated[
        str | None, _option("--server", "-s", metavar="URL", help=f"Server URL (default: {DEFAULT_SERVER}).")
    ],
    "context": Annotated[
        str | None,
        _option("--context", metavar="NAME", help="Use a saved connection; see 'headrace context'."),
    ],
    "user": Annotated[str | None, _option("--user", help="User name.")],
    "password": Annotated[str | None, _option("--password", help="Password.")],
    "token": Annotated[str | None, _option("--token", help="Token, instead of user and password.")],
    "creds": Annotated[
        str | None, _option("--creds", metavar="FILE", help="Credentials file (JWT and nkey seed).")
    ],
    "nkey": Annotated[str | None, _option("--nkey", metavar="FILE", help="Nkey seed file.")],
    "tlsca": Annotated[
        str | None, _option("--tlsca", metavar="FILE", help="CA certificate to verify the server with.")
    ],
    "tlscert": Annotated[str | None, _option("--tlscert", metavar="FILE", help="Client certificate.")],
    "tlskey": Annotated[
        str | None, _option("--tlskey", metavar="FILE", help="Private key of the client certificate.")
    ],
    "domain": Annotated[str | None, _option("--domain", help="JetStream domain.")],
    "timeout": Annotated[
        float | None,
        _option("--timeout", metavar="SECONDS", help="Time to wait for a response (default: 5)."),
    ],
}

#: Environment variables for options that are not given; the first one set wins.
ENVIRONMENT_VARIABLES = {
    "server": ("HEADRACE_URL", "NATS_URL"),
    "user": ("HEADRACE_USER", "NATS_USER"),
    "password": ("HEADRACE_PASSWORD", "NATS_PASSWORD"),
    "token": ("HEADRACE_TOKEN", "NATS_TOKEN"),
    "creds": ("HEADRACE_CREDS", "NATS_CREDS"),
    "nkey": ("HEADRACE_NKEY", "NATS_NKEY"),
    "tlsca": ("HEADRACE_CA", "NATS_CA"),
    "tlscert": ("HEADRACE_CERT", "NATS_CERT"),
    "tlskey": ("HEADRACE_KEY", "NATS_KEY"),
    "context": ("HEADRACE_CONTEXT", "NATS_CONTEXT"),
}

#: Names of the options in a context file.
CONTEXT_FIELDS = {
    "server": "url",
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds",
    "nkey": "nkey",
    "tlsca": "ca",
    "tlscert": "cert",
    "tlskey": "key",
    "domain": "jetstream_domain",
    "api_prefix": "jetstream_api_prefix",
    "inbox_prefix": "inbox_prefix",
    "tls_first": "tls_first",
}


@dataclass(frozen=True)
class ConnectionTarget:
    """A server and how to connect to it."""

    server: str = DEFAULT_SERVER
    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    nkey: str = ""
    tlsca: str = ""
    tlscert: str = ""
    tlskey: str = ""
    domain: str = ""
    api_prefix: str = ""
    inbox_prefix: str = ""
    tls_first: bool = False
    timeout: float = 5.0

    @property
    def servers(self) -> list[str]:
        return [url.strip() for url in self.server.split(",") if url.strip()]

    @property
    def display_urls(self) -> str:
        """The addresses without passwords."""
        return ", ".join(url.rpartition("@")[2] if "@" in url else url for url in self.servers)

    def client_options(self) -> dict[str, Any]:
        """Return the options for nats-py's connect."""
        given = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "user_credentials": self.creds and os.path.expanduser(self.creds),
            "nkeys_seed": self.nkey and os.path.expanduser(self.nkey),
            "inbox_prefix": self.inbox_prefix,
            "tls": self._tls(),
            "tls_handshake_first": self.tls_first,
        }
        return {name: value for name, value in given.items() if value}

    def jetstream_options(self) -> dict[str, Any]:
        if self.api_prefix:
            return {"prefix": self.api_prefix, "timeout": self.timeout}
        return {"domain": self.domain or None, "timeout": self.timeout}

    def _tls(self) -> SSLContext | None:
        if not (self.tlsca or self.tlscert):
            return None
        import ssl

        try:
            context = ssl.create_default_context(cafile=os.path.expanduser(self.tlsca) or None)
            if self.tlscert:
                key = os.path.expanduser(self.tlskey) or None
                context.load_cert_chain(os.path.expanduser(self.tlscert), key)
        except OSError as error:
            files = ", ".join(filter(None, (self.tlsca, self.tlscert, self.tlskey)))
            raise CliError(f"cannot load the TLS files ({files}): {error}", USAGE_ERROR) from None
        return context


def resolve_target(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ConnectionTarget:
    """Return the target of a command line."""
    given = {name: value for name, value in flags.items() if value is not None}
    from_environment = {
        name: text for name in ENVIRONMENT_VARIABLES if (text := _get_variable(environment, name))
    }
    if "context" in given:
        # A context named on the command line takes precedence over the environment.
        values = {**from_environment, **_load_context(given["context"]), **given}
    elif "context" in from_environment:
        values = {**_load_context(from_environment["context"]), **from_environment, **given}
    else:
        has_server = "server" in given or "server" in from_environment
        name = "" if has_server else contexts.get_selected()
        values = {**(_load_context(name) if name else {}), **from_environment, **given}
    known = {field.name for field in fields(ConnectionTarget)}
    return ConnectionTarget(**{name: value for name, value in values.items() if name in known})


def _get_variable(environment: Mapping[str, str], name: str) -> str:
    return next((environment[each] for each in ENVIRONMENT_VARIABLES[name] if environment.get(each)), "")


def _load_context(name: str) -> dict[str, Any]:
    saved = contexts.load(name)
    return {option: saved[field] for option, field in CONTEXT_FIELDS.items() if saved.get(field)}
