"""Every error that Headrace raises on purpose: one base class, few branches.

The core raises; the outer layers map each branch to one response in one place. A message says what was wrong, with the
value, and what to do.
"""

from typing import TYPE_CHECKING

from headrace.deprecation import renamed_names


class HeadraceError(Exception):
    """The root; never raised itself."""


class ProtocolError(HeadraceError):
    """The peer broke the wire protocol; its connection ends.

    `text` is sent as `-ERR 'text'` before closing; None closes silently, as the reference does for malformed arguments.
    """

    def __init__(self, text: str | None) -> None:
        super().__init__(text or "malformed operation")
        self.text = text


class AuthError(HeadraceError):
    """Credentials missing, wrong or expired."""


class RequestError(HeadraceError):
    """A JetStream request that is refused, with the error of the API's table."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.err_code = err_code
        self.description = description


class StoreError(HeadraceError):
    """The store cannot do what was asked."""


class CorruptData(StoreError):
    """Bytes on disk are not what was written."""


class UnknownFeature(StoreError):
    """A newer version wrote this, in a format that this version does not know."""


class StorePoisoned(StoreError):
    """A sync failed; nothing more may be acknowledged until a restart has read the disk again."""


class StoreFull(StoreError):
    """No space is left for what was asked; reading and deleting go on."""


class ClaimError(HeadraceError):
    """A claim cannot be stored, found or trusted."""


class DataLoss(HeadraceError):
    """Messages that a query had still to read are gone."""


if not TYPE_CHECKING:
    __getattr__ = renamed_names(
        __name__, {"Corrupt": "CorruptData", "Poisoned": "StorePoisoned", "Full": "StoreFull"}
    )
