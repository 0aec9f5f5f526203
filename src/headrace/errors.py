"""Every error that Headrace raises on purpose: one base class, few branches.

The core raises; the outer layers map each branch to one response in one place. A message says what was wrong, with the
value, and what to do.
"""

from typing import TYPE_CHECKING

from headrace.deprecation import renamed_names


class HeadraceError(Exception):
    """The base class; never raised itself."""


class ProtocolError(HeadraceError):
    """The peer violated the protocol; its connection ends.

    `text` is sent as `-ERR 'text'` before closing; None closes silently, as nats-server does for malformed arguments.
    """

    def __init__(self, text: str | None) -> None:
        super().__init__(text or "malformed operation")
        self.text = text


class AuthError(HeadraceError):
    """Credentials are missing, wrong or expired."""


class RequestError(HeadraceError):
    """A rejected JetStream request, with the error of the API's table."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.err_code = err_code
        self.description = description


class StoreError(HeadraceError):
    """The store cannot do what was requested."""


class CorruptData(StoreError):
    """Bytes on disk are not what was written."""


class UnknownFeature(StoreError):
    """A newer version wrote this, in a format that this version does not know."""


class StorePoisoned(StoreError):
    """A sync failed; nothing more may be acknowledged until a restart has read the disk again."""


class StoreFull(StoreError):
    """No space is left for the request; reading and deleting still work."""


class ClaimError(HeadraceError):
    """A claim cannot be stored, found or trusted."""


class DataLoss(HeadraceError):
    """Messages that a query had not read yet are gone."""


if not TYPE_CHECKING:
    __getattr__ = renamed_names(
        __name__, {"Corrupt": "CorruptData", "Poisoned": "StorePoisoned", "Full": "StoreFull"}
    )
