"""Errors of the claim check, named for what the caller can do about them.

All are `headrace.errors.ClaimError`. `retryable` says whether the same call may succeed later: a consumer then asks for
redelivery, and otherwise gives the message up. An object store's own errors never leave this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.deprecation import renamed_names
from headrace.errors import ClaimError

__all__ = [
    "ChecksumMismatch",
    "ClaimError",
    "ClaimFailure",
    "ClaimNotFound",
    "ConfigConflict",
    "ConfigError",
    "Corrupt",
    "Expired",
    "Forbidden",
    "PublishFailed",
    "PublishUnknown",
    "StoreUnavailable",
    "TooLarge",
]


class ClaimFailure(ClaimError):
    """An error about one claim."""

    retryable = False
    #: Its name in metrics, events and headers of dead letters.
    reason = "failed"

    #: Whether a repaired or upgraded program or store may be able to read the claim as long as it exists.
    may_pass = False

    def __init__(self, text: str, claim_id: str = "", *, may_pass: bool | None = None) -> None:
        super().__init__(text)
        self.claim_id = claim_id
        if may_pass is not None:
            self.may_pass = may_pass


class Expired(ClaimFailure):
    """The claim is past its `expires_at`; its bytes are no longer kept."""

    reason = "expired"


class ClaimNotFound(ClaimFailure):
    """The object is not in the store: expired, collected, or removed by another program."""

    reason = "not-found"
    may_pass = True


class ChecksumMismatch(ClaimFailure):
    """The bytes are not those that were stored."""

    reason = "checksum"


class TooLarge(ClaimFailure):
    """The claim is larger, by its content or its reference, than this namespace allows."""

    reason = "too-large"


class Forbidden(ClaimFailure):
    """The reference points outside of its namespace: another bucket, prefix or key."""

    reason = "forbidden"
    may_pass = True


class Corrupt(ClaimFailure):
    """The reference cannot be read, or the stored bytes cannot be decompressed."""

    reason = "corrupt"


class StoreUnavailable(ClaimFailure):
    """The store did not answer, rejected the credentials or is full; it may work later."""

    retryable = True
    reason = "unavailable"


class PublishFailed(ClaimFailure):
    """The server rejected the reference; the object was removed again."""

    reason = "publish-failed"


class PublishUnknown(ClaimFailure):
    """There was no reply: the reference may be in the stream. The object stays; publish again with the same `msg_id`."""

    retryable = True
    reason = "publish-unknown"


class ConfigError(ClaimError):
    """An invalid configuration; `path` is the key, as in `claim_check.ttl.max_age`."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path


class ConfigConflict(ClaimError):
    """This program's configuration of a namespace contradicts the one that is published."""


if not TYPE_CHECKING:
    __getattr__ = renamed_names(
        __name__,
        {"Disagreement": "ConfigConflict", "NotFound": "ClaimNotFound", "Unavailable": "StoreUnavailable"},
    )
