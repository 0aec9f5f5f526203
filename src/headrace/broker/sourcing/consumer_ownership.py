"""Decides which stream owns a consumer that a server created for a mirror or source, from the consumer's metadata.

Two streams reading through one consumer would take messages from each other, so a consumer of another stream is left
alone. Owns the metadata and the decision. Invariant: a stream that was deleted and created again, restored, or moved
with its name, account and domain gets its consumer back; any other does not. Must not know replicators or requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.errors import RequestError
from headrace.jetstream_api import errors
from headrace.jetstream_api.errors import ApiError

#: The id of the store of the server that created the consumer; nats-server has no such key.
_SERVER = "_headrace.server"
_KINDS = ("_nats.src.", "_nats.mirror.")
_IN_USE = ApiError.CONSUMER_NAME_EXIST


class ConsumerOwner(NamedTuple):
    """A stream and its location. `server` is "" if it is not known."""

    account: str
    domain: str
    stream: str
    server: str = ""

    def metadata(self, *, mirror: bool) -> dict[str, str]:
        """Return the metadata of a consumer that belongs to this stream."""
        prefix = _KINDS[mirror]
        about = {
            f"{prefix}acc": self.account,
            f"{prefix}domain": self.domain,
            f"{prefix}stream": self.stream,
            _SERVER: self.server,
        }
        return {key: value for key, value in about.items() if value}

    def may_take_over_from(self, other: ConsumerOwner, *, is_bound: bool) -> bool:
        """Whether this stream may take over a consumer of `other`.

        It may if both are the same stream, on another server or in a new store, and nobody subscribes to the deliver
        subject.
        """
        return self[:3] == other[:3] and not is_bound

    def owns(self, other: ConsumerOwner) -> bool:
        """Whether `other` is this very stream. A server keeps its streams when its domain is renamed."""
        if self.server and other.server:
            is_same_stream = (self.account, self.stream) == (other.account, other.stream)
            return self.server == other.server and is_same_stream
        return self[:3] == other[:3]

    def __str__(self) -> str:
        place = f" in domain {self.domain}" if self.domain else ""
        return f"stream {self.stream!r} of account {self.account}{place}"


def parse_owner(metadata: Mapping[str, str]) -> ConsumerOwner | None:
    """Parse the owner from a consumer's metadata; None if it was not created for a mirror or source."""
    for prefix in _KINDS:
        if stream := metadata.get(f"{prefix}stream"):
            account, domain = (metadata.get(prefix + key, "") for key in ("acc", "domain"))
            return ConsumerOwner(account, domain, stream, metadata.get(_SERVER, ""))
    return None


def consumer_in_use_error(consumer: str, origin: str, owner: object) -> RequestError:
    """Return the error for a mirror or source whose consumer belongs to another stream."""
    entry = errors.load_table()[_IN_USE]
    text = (
        f"{entry.description}: {owner} reads stream {origin!r} with consumer {consumer!r}; choose another consumer name "
        "for this mirror or source, or delete the consumer if it is no longer used"
    )
    return RequestError(entry.code, entry.error_code, text)
