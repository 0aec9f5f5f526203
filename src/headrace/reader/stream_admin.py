"""API requests of the driver and the tasks about a stream.

Owns the API calls of the reading side and their retries while a server restarts. Invariant: a server that was never
reached fails at once with one clear error; one that was reached before is retried. Must not know Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from headrace.errors import HeadraceError
from headrace.reader.blocking_connection import (
    BlockingConnection,
    ConnectionFailed,
    ServerAddress,
    connection_for,
    drop_connection,
)
from headrace.reader.options import ReadOptions

#: Maximum length of a chain of mirrors.
_MIRROR_HOPS_MAX = 8

T = TypeVar("T")

_RETRY_PAUSE_S = 0.2
_NO_MESSAGE = 10037
_NO_STREAM = 10059
#: How often streams are listed again if the listing changes meanwhile.
_LISTINGS_MAX = 5
_UNAVAILABLE = 503
#: JetStream is disabled for the account or the server: retrying does not help.
_NOT_ENABLED = (10039, 10076)
_reached: set[ServerAddress] = set()


class StreamError(HeadraceError):
    """A stream is missing, or cannot be read or written as requested."""


class StreamMissing(StreamError):
    """There is no such stream."""


@dataclass(frozen=True)
class StreamInfo:
    """What readers need to know about a stream (`client.configs.StreamInfo` is the API's complete response).

    `identity` identifies this very stream, not a later one of the same name.
    """

    name: str
    identity: str
    first_seq: int
    next_seq: int
    messages: int
    bytes: int
    config: dict[str, Any]
    pin: str = ""

    @property
    def retention(self) -> str:
        return str(self.config.get("retention", "limits"))

    @property
    def average_message_bytes(self) -> int:
        """The average size of a message."""
        return max(self.bytes // max(self.messages, 1), 1)


def parse_time_ns(text: str) -> int:
    """Parse a server's time to the nanosecond, which `datetime` does not support."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * 1_000_000_000 + int(rest.ljust(9, "0") or 0)


def mark_reachable(address: ServerAddress) -> None:
    """Record that the driver reached the server, so that a task also retries its first connection."""
    _reached.add(address)


def with_retry(address: ServerAddress, retry_timeout_s: float, work: Callable[[BlockingConnection], T]) -> T:
    """Run `work` with this process's connection; a broken connection is retried until the timeout."""
    deadline = time.monotonic() + (retry_timeout_s if address in _reached else 0.0)
    while True:
        try:
            connection = connection_for(address)
            _reached.add(address)
            return work(connection)
        except ConnectionFailed:
            drop_connection(address)
            if time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_PAUSE_S)


def call_api(connection: BlockingConnection, subject: str, body: Any = None) -> dict[str, Any]:
    """Call the API; return the response or raise its error."""
    response: dict[str, Any] = json.loads(connection.request(subject, body).payload)
    if "error" in response:
        raise _make_error(response["error"])
    return response


def call_leader(connection: BlockingConnection, subject: str, body: Any = None) -> dict[str, Any]:
    """Call the API about an existing stream: if it has no leader now, raise ConnectionFailed."""
    response: dict[str, Any] = json.loads(connection.request(subject, body).payload)
    if "error" in response:
        raise refuse(response["error"])
    return response


def refuse(error: dict[str, Any], about: str = "") -> HeadraceError:
    """Return the error of a response: `ConnectionFailed`, which is retried, while a stream has no leader."""
    refusal = _make_error(error, about)
    if error.get("code") == _UNAVAILABLE and error.get("err_code") not in _NOT_ENABLED:
        return ConnectionFailed(f"the leader is not available: {refusal}")
    return refusal


def _make_error(error: dict[str, Any], about: str = "") -> StreamError:
    text = f"{error.get('description', 'no description')} [{error.get('err_code', error.get('code'))}]"
    error_class = StreamMissing if error.get("err_code") == _NO_STREAM else StreamError
    return error_class(f"{about}: {text}" if about else text)


def fetch_info(options: ReadOptions) -> StreamInfo:
    """Return the stream's current state; raise StreamError if there is none."""
    return fetch_stream_info(options.address, options.api_prefix, options.stream, options.reconnect_s)


def fetch_stream_info(
    address: ServerAddress, api_prefix: str, stream: str, retry_timeout_s: float
) -> StreamInfo:
    """Return a stream's configuration and state."""

    def send_request(connection: BlockingConnection) -> dict[str, Any]:
        try:
            return (call_leader if retry_timeout_s else call_api)(
                connection, f"{api_prefix}.STREAM.INFO.{stream}"
            )
        except StreamError as error:
            names = call_api(connection, f"{api_prefix}.STREAM.NAMES").get("streams") or ["none"]
            raise type(error)(
                f"stream {stream!r} on {address.redacted_servers}: {error}; existing streams: {', '.join(names)}"
            ) from error

    response = with_retry(address, retry_timeout_s, send_request)
    state, config = response["state"], response["config"]
    return StreamInfo(
        stream,
        str(parse_time_ns(response["created"])),
        max(state["first_seq"], 1),  # 0 if the stream never had a message
        state["last_seq"] + 1,
        state["messages"],
        state["bytes"],
        config,
    )


def list_stream_names(options: ReadOptions) -> set[str]:
    """Return the names of all streams, which a server returns in pages.

    If streams come and go between two pages, others move to positions that were already read: then it lists them again.
    """
    seen: set[str] = set()
    for _ in range(_LISTINGS_MAX):
        names, is_complete = _list_once(options)
        if is_complete:
            return names
        seen |= names
    return seen


def _list_once(options: ReadOptions) -> tuple[set[str], bool]:
    """Return the names in all pages, and whether the listing did not change meanwhile: pages overlap by one name."""
    names: set[str] = set()
    totals: set[int] = set()
    is_stable = True

    def fetch_page(connection: BlockingConnection) -> dict[str, Any]:
        return call_leader(
            connection, f"{options.api_prefix}.STREAM.NAMES", {"offset": max(len(names) - 1, 0)}
        )

    while True:
        response = with_retry(options.address, options.reconnect_s, fetch_page)
        page = set(response.get("streams") or ())
        totals.add(int(response.get("total", 0)))
        is_last = page <= names
        is_stable = is_stable and not (names and names.isdisjoint(page))
        names |= page
        if is_last or len(names) >= max(totals):
            return names, is_stable and len(totals) == 1 and len(names) >= max(totals)


def find_key_prefix(options: ReadOptions, stream_info: StreamInfo) -> str:
    """Return the prefix of the subjects of a bucket's keys: a mirror has its upstream's, unless it transforms them."""
    stream = stream_info.name
    for _ in range(_MIRROR_HOPS_MAX):
        mirror = stream_info.config.get("mirror")
        if not mirror:
            break
        for each in mirror.get("subject_transforms") or ():
            if str(each.get("dest")).endswith(".>"):
                return str(each["dest"])[:-1]
        stream = str(mirror["name"])
        if mirror.get("external"):
            break
        try:
            stream_info = fetch_stream_info(options.address, options.api_prefix, stream, 0.0)
        except StreamError:
            break
    return f"$KV.{stream.removeprefix('KV_')}."


def find_seq_at_time(options: ReadOptions, time_ns: int) -> int | None:
    """Return the first message at or after a time; None if all are older.

    Asks the leader: a replica that lags may have no message after a recent time.
    """
    seconds, rest = divmod(time_ns, 1_000_000_000)
    text = f"{datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()}.{rest:09d}Z"
    subject = f"{options.api_prefix}.STREAM.MSG.GET.{options.stream}"

    def send_request(connection: BlockingConnection) -> int | None:
        response: dict[str, Any] = json.loads(connection.request(subject, {"start_time": text}).payload)
        error = response.get("error")
        if error is None:
            return int(response["message"]["seq"])
        if error.get("err_code") == _NO_MESSAGE:
            return None
        raise refuse(error, f"stream {options.stream!r} at {text}")

    return with_retry(options.address, options.reconnect_s, send_request)


def pin_stream(options: ReadOptions) -> str:
    """Ask a Headrace broker to pin the stream's files for readers; return the name of the pin."""
    return str(_request_pin(options, {"lease": options.lease_s})["pin"])


def _request_pin(options: ReadOptions, body: dict[str, Any]) -> dict[str, Any]:
    subject = f"{options.api_prefix}.STREAM.PIN.{options.stream}"

    def send_request(connection: BlockingConnection) -> dict[str, Any]:
        try:
            return call_api(connection, subject, body)
        except ConnectionFailed as error:
            raise StreamError(
                f"{options.address.redacted_servers} does not reply to a request for a snapshot; option `path` needs a "
                "Headrace broker and permission for it. Without `path` the stream is read from the server"
            ) from error

    return with_retry(options.address, options.reconnect_s, send_request)


def pin_with_token(options: ReadOptions, pin: str = "") -> tuple[str, str]:
    """Return a new pin, or the given one, and the token for its files; raise StreamError if the pin is gone."""
    body: dict[str, Any] = {"pin": pin, "grant": True} if pin else {"lease": options.lease_s, "grant": True}
    response = _request_pin(options, body)
    if not response.get("token"):
        raise StreamError(
            f"{options.address.redacted_servers} does not serve snapshot files; its version is too old for this `path`"
        )
    return str(response["pin"]), str(response["token"])


def unpin_stream(options: ReadOptions, pin: str) -> None:
    """Release a pin."""
    subject = f"{options.api_prefix}.STREAM.UNPIN.{options.stream}"
    with_retry(
        options.address, options.reconnect_s, lambda connection: call_api(connection, subject, {"pin": pin})
    )


def list_subjects(options: ReadOptions) -> list[str]:
    """Return the stream's subjects that match the query, sorted.

    A server returns them in pages, in order. Pages overlap, because subjects come and go meanwhile: if a page has none
    of those found before, others may have moved to positions before it.
    """
    found: set[str] = set()
    offset, step_back = 0, 1
    while True:
        page, total = _fetch_subjects_page(options, offset)
        if offset and found.isdisjoint(page):
            offset, step_back = max(offset - step_back, 0), step_back * 2
            continue
        found |= page
        offset, step_back = offset + len(page) - 1, 1
        if offset + 1 >= total:
            return sorted(found)


def _fetch_subjects_page(options: ReadOptions, offset: int) -> tuple[set[str], int]:
    """Return a page of subjects, and their total number."""
    subject = f"{options.api_prefix}.STREAM.INFO.{options.stream}"
    request = {"subjects_filter": options.subject or ">", "offset": offset}
    response = with_retry(
        options.address, options.reconnect_s, lambda connection: call_api(connection, subject, request)
    )
    page = set(response["state"].get("subjects") or ())
    return page, int(response.get("total", 0))
