"""What the driver and the tasks ask a server about a stream.

Owns the API calls of the reading side and how they are repeated while a server restarts. Invariant: a server that was
never reached fails at once with one clear error; one that was reached before is waited for. Must not know Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from headrace.errors import HeadraceError
from headrace.spark.link import Address, Link, LinkError, drop_link, shared_link
from headrace.spark.options import Options

#: Mirrors of mirrors, at most.
_MIRRORS_MAX = 8

T = TypeVar("T")

_PAUSE_S = 0.2
_NO_MESSAGE = 10037
_UNAVAILABLE = 503
#: JetStream is off, for the account or the server: that does not pass.
_NOT_ENABLED = (10039, 10076)
_greeted: set[Address] = set()


class StreamError(HeadraceError):
    """A stream that is missing, or that cannot be read or written as asked."""


@dataclass(frozen=True)
class Facts:
    """A stream as it is now. `identity` is that of this very stream, not of a later one with its name."""

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
    def message_bytes(self) -> int:
        """What a message takes on average."""
        return max(self.bytes // max(self.messages, 1), 1)


def nanoseconds(text: str) -> int:
    """A server's time, to the nanosecond, which `datetime` does not keep."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * 1_000_000_000 + int(rest.ljust(9, "0") or 0)


def expect(address: Address) -> None:
    """The server was there when the driver looked: a task waits for it also at its first contact."""
    _greeted.add(address)


def persistently(address: Address, patience_s: float, work: Callable[[Link], T]) -> T:
    """Work with this process's link; a link that breaks is made anew while there is patience."""
    deadline = time.monotonic() + (patience_s if address in _greeted else 0.0)
    while True:
        try:
            link = shared_link(address)
            _greeted.add(address)
            return work(link)
        except LinkError:
            drop_link(address)
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_S)


def call(link: Link, subject: str, body: Any = None) -> dict[str, Any]:
    """An API call; its answer, or the error it came with."""
    answer: dict[str, Any] = json.loads(link.request(subject, body).payload)
    if "error" in answer:
        error = answer["error"]
        raise StreamError(
            f"{error.get('description', 'refused')} [{error.get('err_code', error.get('code'))}]"
        )
    return answer


def call_leader(link: Link, subject: str, body: Any = None) -> dict[str, Any]:
    """An API call about a stream that is known to be there: that its leader is not, now, is an error of the link."""
    answer: dict[str, Any] = json.loads(link.request(subject, body).payload)
    if "error" in answer:
        raise refuse(answer["error"])
    return answer


def refuse(error: dict[str, Any], about: str = "") -> HeadraceError:
    """The error of an answer: `LinkError`, which is tried again, while a stream has no leader."""
    text = f"{error.get('description', 'refused')} [{error.get('err_code', error.get('code'))}]"
    text = f"{about}: {text}" if about else text
    if error.get("code") == _UNAVAILABLE and error.get("err_code") not in _NOT_ENABLED:
        return LinkError(f"the leader cannot be asked now: {text}")
    return StreamError(text)


def stream_facts(options: Options) -> Facts:
    """The stream now; StreamError if there is none."""
    return facts_of(options.address, options.api, options.stream, options.reconnect_s)


def facts_of(address: Address, api: str, stream: str, patience_s: float) -> Facts:
    """A stream's configuration and state."""

    def ask(link: Link) -> dict[str, Any]:
        try:
            return (call_leader if patience_s else call)(link, f"{api}.STREAM.INFO.{stream}")
        except StreamError as error:
            names = call(link, f"{api}.STREAM.NAMES").get("streams") or ["none"]
            raise StreamError(
                f"stream {stream!r} on {address.shown}: {error}; there are {', '.join(names)}"
            ) from error

    answer = persistently(address, patience_s, ask)
    state, config = answer["state"], answer["config"]
    return Facts(
        stream,
        str(nanoseconds(answer["created"])),
        max(state["first_seq"], 1),  # a stream that never had a message says 0
        state["last_seq"] + 1,
        state["messages"],
        state["bytes"],
        config,
    )


def key_prefix(options: Options, facts: Facts) -> str:
    """What the subjects of a bucket's keys begin with: in a mirror as in its origin, unless it gives them others."""
    stream = facts.name
    for _ in range(_MIRRORS_MAX):
        mirror = facts.config.get("mirror")
        if not mirror:
            break
        for each in mirror.get("subject_transforms") or ():
            if str(each.get("dest")).endswith(".>"):
                return str(each["dest"])[:-1]
        stream = str(mirror["name"])
        if mirror.get("external"):
            break
        try:
            facts = facts_of(options.address, options.api, stream, 0.0)
        except StreamError:
            break
    return f"$KV.{stream.removeprefix('KV_')}."


def seq_at(options: Options, time_ns: int) -> int | None:
    """The first message at or after a time; None when all are older. The leader is asked: a replica that is behind has
    no message after a recent time."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    text = f"{datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()}.{rest:09d}Z"
    subject = f"{options.api}.STREAM.MSG.GET.{options.stream}"

    def ask(link: Link) -> int | None:
        answer: dict[str, Any] = json.loads(link.request(subject, {"start_time": text}).payload)
        error = answer.get("error")
        if error is None:
            return int(answer["message"]["seq"])
        if error.get("err_code") == _NO_MESSAGE:
            return None
        raise refuse(error, f"stream {options.stream!r} at {text}")

    return persistently(options.address, options.reconnect_s, ask)


def pin_stream(options: Options) -> str:
    """Ask a Headrace broker to hold the stream's files for readers; the name of the pin."""
    return str(_ask_for_pin(options, {"lease": options.lease_s})["pin"])


def _ask_for_pin(options: Options, body: dict[str, Any]) -> dict[str, Any]:
    subject = f"{options.api}.STREAM.PIN.{options.stream}"

    def ask(link: Link) -> dict[str, Any]:
        try:
            return call(link, subject, body)
        except LinkError as error:
            raise StreamError(
                f"{options.address.shown} does not answer to a request for a pin; option `path` needs a Headrace "
                "broker and its permission. Without `path` the stream is read over the wire"
            ) from error

    return persistently(options.address, options.reconnect_s, ask)


def granted_pin(options: Options, pin: str = "") -> tuple[str, str]:
    """A new pin, or the one named, with the token that its files are served for; StreamError if that is gone."""
    body: dict[str, Any] = {"pin": pin, "grant": True} if pin else {"lease": options.lease_s, "grant": True}
    answer = _ask_for_pin(options, body)
    if not answer.get("token"):
        raise StreamError(f"{options.address.shown} serves no pinned files; it is too old for this `path`")
    return str(answer["pin"]), str(answer["token"])


def unpin_stream(options: Options, pin: str) -> None:
    """Let go of a pin."""
    subject = f"{options.api}.STREAM.UNPIN.{options.stream}"
    persistently(options.address, options.reconnect_s, lambda link: call(link, subject, {"pin": pin}))


def subjects_of(options: Options) -> list[str]:
    """The subjects that the stream has messages of, as far as the query wants them, sorted.

    A server gives them page by page, in order. Pages overlap, because subjects come and go meanwhile: where a page has
    nothing of what was found before, others may have moved to places before it.
    """
    found: set[str] = set()
    offset, back = 0, 1
    while True:
        page, total = _subjects_from(options, offset)
        if offset and found.isdisjoint(page):
            offset, back = max(offset - back, 0), back * 2
            continue
        found |= page
        offset, back = offset + len(page) - 1, 1
        if offset + 1 >= total:
            return sorted(found)


def _subjects_from(options: Options, offset: int) -> tuple[set[str], int]:
    """A page of subjects, and how many there are in all."""
    subject = f"{options.api}.STREAM.INFO.{options.stream}"
    wanted = {"subjects_filter": options.subject or ">", "offset": offset}
    answer = persistently(options.address, options.reconnect_s, lambda link: call(link, subject, wanted))
    page = set(answer["state"].get("subjects") or ())
    return page, int(answer.get("total", 0))
