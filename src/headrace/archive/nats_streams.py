"""The two streams of an archive in a NATS cluster, and the connection to it.

Owns their names, subjects and configurations. Invariant: a stream is used only if nothing but the archive removes messages
from it, and if it has three replicas, unless the server is not a cluster. Must not know what is stored in them.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from nats.aio.client import Client as Connection

from headrace.claims.jetstream_client import STREAM_NOT_FOUND, JetStreamClient
from headrace.claims.stores import ObjectStoreError
from headrace.errors import ArchiveError, ClaimError, RequestError

REPLICAS = 3
#: How long a request waits for its reply; afterwards its outcome is unknown.
TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 10.0
#: A smaller max_payload leaves too little room for the header of a group.
PAYLOAD_MIN = 64 << 10
_NOT_CLUSTERED = 10074
_ENVIRONMENT = {"user_credentials": "CREDS", "user": "USER", "password": "PASSWORD", "token": "TOKEN"}
_ENVIRONMENT_NKEY = "NKEY"


@dataclass(frozen=True, slots=True)
class NatsLocation:
    """Where an archive is: `nats://HOST[:PORT],.../STREAM[?domain=NAME]`."""

    servers: list[str]
    stream: str
    domain: str = ""


def parse_nats_url(url: str) -> NatsLocation:
    """Parse the URL of an archive; raise ArchiveError if it is invalid."""
    parts = urlsplit(url)
    stream = parts.path.strip("/")
    settings = parse_qs(parts.query)
    if "@" in parts.netloc:
        raise ArchiveError("archive: credentials come from the environment, never from the url")
    is_name = stream and not set(stream) & set("/. *>\\\t\r\n")
    if not parts.netloc or not is_name or settings.keys() - {"domain"}:
        raise ArchiveError(f"invalid archive url {url!r}: use nats://HOST:PORT,HOST:PORT,.../STREAM")
    servers = [f"nats://{host}" for host in parts.netloc.split(",") if host]
    return NatsLocation(servers, stream, settings.get("domain", [""])[-1])


def _make_options() -> dict[str, Any]:
    """Return options of `nats.connect`, with the credentials in HEADRACE_CREDS or NATS_CREDS, and so on."""
    found: dict[str, Any] = {"reconnect_time_wait": 0.2}
    for option, name in _ENVIRONMENT.items():
        if value := os.environ.get(f"HEADRACE_{name}") or os.environ.get(f"NATS_{name}"):
            found[option] = value
    if nkey := os.environ.get(f"HEADRACE_{_ENVIRONMENT_NKEY}") or os.environ.get(f"NATS_{_ENVIRONMENT_NKEY}"):
        found["nkeys_seed"] = nkey
    if authority := os.environ.get("HEADRACE_CA") or os.environ.get("NATS_CA"):
        import ssl

        found["tls"] = ssl.create_default_context(cafile=authority)
    return found


class NatsStreams:
    """The streams of one archive; it connects when they are first used, on the loop of that call."""

    def __init__(self, location: NatsLocation) -> None:
        self._location = location
        self.log = location.stream
        self.objects = f"{location.stream}_objects"
        self._prefix = f"headrace.archive.{location.stream}"
        self._connection = Connection()
        self._client: JetStreamClient | None = None
        self.replicas = 0

    # Subjects

    def log_subject(self, server: str) -> str:
        """Return the subject of the groups of a server."""
        return f"{self._prefix}.log.{server}"

    def object_subject(self, key: str) -> str:
        """Return the subject of the head of an object, or of all below a prefix that is empty or ends in `/`."""
        tokens = key.replace(".", "~").replace("/", ".")
        return f"{self._prefix}.object.{tokens}{'>' if not key or key.endswith('/') else ''}"

    def parse_object_subject(self, subject: str) -> str:
        """Return the key of an object."""
        return subject.removeprefix(f"{self._prefix}.object.").replace(".", "/").replace("~", ".")

    def part_subject(self, upload: str, number: int | str) -> str:
        """Return the subject of a part of an object, or of all of them."""
        return f"{self._prefix}.part.{upload}.{number}"

    # Connection

    @property
    def client(self) -> JetStreamClient:
        """The client; `connect` comes first."""
        assert self._client is not None
        return self._client

    @property
    def max_payload(self) -> int:
        """The largest message that the server accepts."""
        return int(self._connection.max_payload)

    async def connect(self) -> None:
        """Connect, once; afterwards the connection restores itself."""
        if self._client is not None:
            return
        location, self._connection = self._location, Connection()
        options = {"name": "headrace archive", "error_cb": _ignore_error, **_make_options()}
        try:
            # The client itself would try forever.
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._connection.connect(location.servers, max_reconnect_attempts=-1, **options)
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise ObjectStoreError(f"cannot connect to {', '.join(location.servers)}: {reason}") from error
        if self.max_payload < PAYLOAD_MIN:
            raise ArchiveError(
                f"max_payload of the NATS server is {self.max_payload}: raise it to 64 KiB or more"
            )
        prefix = f"$JS.{location.domain}.API" if location.domain else "$JS.API"
        self._client = JetStreamClient(self._connection, timeout_s=TIMEOUT_S, prefix=prefix)

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.close()
            await self._connection.close()

    # Streams

    async def exist(self) -> bool:
        """Return whether there are both streams."""
        await self.connect()
        return all([await self._read_info(name) is not None for name in (self.log, self.objects)])

    async def prepare(self) -> None:
        """Create the streams that are missing; raise ArchiveError if one cannot be used."""
        await self.connect()
        for name, config in self._make_configs().items():
            info = await self._read_info(name) or await self._create(name, config)
            _check_config(name, config, info)
            self.replicas = int(info["config"].get("num_replicas", 1))

    def _make_configs(self) -> dict[str, dict[str, Any]]:
        shared = {
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "max_age": 0,
            "max_msgs": -1,
            "num_replicas": REPLICAS,
        }
        return {
            self.log: {
                **shared,
                "subjects": [f"{self._prefix}.log.*"],
                "max_msgs_per_subject": -1,
            },
            self.objects: {
                **shared,
                "subjects": [f"{self._prefix}.object.>", f"{self._prefix}.part.>"],
                "max_msgs_per_subject": 1,
                "allow_direct": True,
            },
        }

    async def _read_info(self, name: str) -> dict[str, Any] | None:
        try:
            return await self.client.api_request(f"STREAM.INFO.{name}")
        except RequestError as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None
            raise ObjectStoreError(f"stream {name} cannot be read: {error}") from error
        except ClaimError as error:
            raise ObjectStoreError(str(error)) from error

    async def _create(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        for replicas in (REPLICAS, 1):
            body = {**config, "name": name, "num_replicas": replicas}
            try:
                return await self.client.api_request(f"STREAM.CREATE.{name}", body)
            except RequestError as error:
                if error.err_code != _NOT_CLUSTERED:
                    raise ObjectStoreError(f"stream {name} cannot be created: {error}") from error
            except ClaimError as error:
                raise ObjectStoreError(str(error)) from error
        raise ArchiveError(f"stream {name} cannot be created")


async def _ignore_error(error: Exception) -> None:
    """Ignore an error of the connection: requests that fail report it."""


def _check_config(name: str, wanted: dict[str, Any], info: dict[str, Any]) -> None:
    """Raise ArchiveError if a stream could lose messages, or others can publish to it."""
    found = info["config"]
    defaults = {"max_age": 0, "max_msgs": -1, "max_msgs_per_subject": -1, "allow_direct": False}
    for key, value in wanted.items():
        actual = found.get(key, defaults.get(key))
        if key == "num_replicas":
            if int(actual or 1) < REPLICAS and (info.get("cluster") or {}).get("name"):
                raise ArchiveError(
                    f"stream {name} has {actual} replicas, which does not survive the loss of a server: use {REPLICAS}"
                )
        elif actual != value and not (key == "max_msgs_per_subject" and (actual or -1) == value):
            raise ArchiveError(
                f"stream {name} cannot be used for an archive: {key} is {actual!r}, not {value!r}"
            )
    for key in ("mirror", "sources", "sealed", "deny_purge", "no_ack", "subject_transform"):
        if found.get(key):
            raise ArchiveError(f"stream {name} cannot be used for an archive: it has {key}")
    if found.get("persist_mode", "default") not in ("", "default"):
        raise ArchiveError(
            f"stream {name} cannot be used for an archive: persist_mode is {found['persist_mode']}"
        )
