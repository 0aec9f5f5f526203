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


class StoreLocked(StoreError):
    """Another process has the store open."""


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


class BackupError(HeadraceError):
    """A backup of a server cannot be made, found or restored."""


class BackupDamaged(BackupError):
    """An object of a backup is missing, or not what was written."""


class ArchiveError(HeadraceError):
    """The archive cannot be used, found or restored."""


class ArchiveFenced(ArchiveError):
    """Another server writes this archive: this one must neither archive nor acknowledge anything any more."""


class ArchiveNotBegun(HeadraceError):
    """The server that may begin this archive has not done so yet: try again later."""


class ArchiveCopyError(ArchiveError):
    """The copy of a standby cannot be written, for example because its disk is full."""


class ArchiveTrimmed(ArchiveError):
    """Groups that a restore needs were dropped while it ran: a new restore begins with a newer base."""


class ArchiveDamaged(ArchiveError):
    """An object of an archive is missing, or not what was written."""


class TableError(HeadraceError):
    """A table of a stream cannot be written, found or trusted."""


class PositionConflict(TableError):
    """The positions that a table records do not agree: it was rolled back, or something else wrote it."""


class StreamReplaced(TableError):
    """The stream is not the one whose messages the table has."""


class StreamGap(TableError):
    """Messages were removed from the stream before they were written to the table."""


class DataLoss(HeadraceError):
    """Messages that a query had not read yet are gone."""


if not TYPE_CHECKING:
    __getattr__ = renamed_names(
        __name__, {"Corrupt": "CorruptData", "Poisoned": "StorePoisoned", "Full": "StoreFull"}
    )
