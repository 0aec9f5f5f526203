"""What a table of `headrace table` records about itself: how far it is, of which stream, and how its columns are made.

Owns the names of these properties for readers, and the check that a stream continues a table. Must not know how tables
are read or written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from headrace.errors import DataLoss, TableError
from headrace.reader.stream_admin import StreamInfo

#: Properties with the position; `tables.position` writes them.
SEQUENCE = "headrace.sequence"
STREAM = "headrace.stream"
IDENTITY = "headrace.stream-identity"
COMMIT_ID = "headrace.commit-id"
#: Property: how the declared columns are made, as JSON.
COLUMNS = "headrace.columns"
ERROR_COLUMN = "_error"


@dataclass(frozen=True)
class DeclaredColumns:
    """The columns of a table that are made of payloads and subjects."""

    json: tuple[str, ...] = ()
    subject: Mapping[str, int] = field(default_factory=dict)
    #: The bucket whose changes the table has, and what it does with claims; "" for none.
    bucket: str = ""
    claims: str = ""

    def to_property(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class LandedTable:
    """Up to which message of which stream a table has the rows."""

    seq: int
    stream: str
    identity: str
    columns: DeclaredColumns


def parse_landed_table(properties: Mapping[str, str | None], name: str) -> LandedTable | None:
    """Return what the properties record; None if `headrace table` did not write the table."""
    seq, stream, identity = (properties.get(key) or "" for key in (SEQUENCE, STREAM, IDENTITY))
    if not (seq.isdigit() and stream and identity):
        return None
    try:
        values = json.loads(properties.get(COLUMNS) or "")
        columns = DeclaredColumns(
            tuple(values["json"]), dict(values["subject"]), values["bucket"], values["claims"]
        )
    except (ValueError, KeyError, TypeError):
        raise TableError(
            f"table {name}: property {COLUMNS} does not say how its columns are made: 'headrace table run' writes it when "
            "it starts"
        ) from None
    return LandedTable(int(seq), stream, identity, columns)


def check_continuation(landed: LandedTable, info: StreamInfo, name: str, *, fail_on_data_loss: bool) -> None:
    """Raise an error unless the rows of the stream above the table's are the rest of it."""
    if landed.columns.bucket:
        raise TableError(
            f"table {name} has the changes of a bucket: it cannot be read together with its stream"
        )
    if landed.columns.claims:
        raise TableError(
            f"table {name} has claims ({landed.columns.claims}): it cannot be read together with its stream"
        )
    if landed.stream != info.name or landed.identity != info.identity:
        raise DataLoss(
            f"stream {info.name!r} is not the one that table {name} was written from ({landed.stream!r}): it was deleted "
            "and created again, or is another one"
        )
    if info.next_seq - 1 < landed.seq:
        raise DataLoss(
            f"stream {info.name!r} ends at sequence {info.next_seq - 1}, but table {name} has {landed.seq}: the stream was "
            "restored from an older state"
        )
    if info.first_seq > landed.seq + 1 and fail_on_data_loss:
        raise DataLoss(
            f"table {name} ends at sequence {landed.seq} and stream {info.name!r} starts at {info.first_seq}: the messages "
            "in between were removed before they were written. To read without them, set failOnDataLoss=false"
        )
