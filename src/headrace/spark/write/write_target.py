"""Where a sink writes, and the identity of the task that writes.

Owns the names that a sink derives from its target: the streams for progress and for staged rows, their subjects, and
the subjects of earlier versions. Must not know Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.reader.blocking_connection import ServerAddress

if TYPE_CHECKING:
    from headrace.spark.write.claim_upload import ClaimUploadConfig, ClaimUploader

#: Prefix of all subjects that a sink uses for itself.
_SUBJECT_PREFIX = "_spark"


@dataclass(frozen=True)
class WriteTarget:
    """The stream to write to, and a task's identity. The same task of a repeated epoch has the same name and number.

    `owner` is the id of a streaming query whose records have a user-given name. `legacy_prefix` is the prefix of progress
    messages that an earlier version may have stored in the target; "" if it stored none.
    """

    address: ServerAddress
    stream: str
    query: str
    epoch: int = 0
    partition: int = 0
    owner: str = ""
    domain: str = ""
    #: Whether it is an epoch of a streaming query, not a batch write.
    is_streaming: bool = True
    #: Whether rows are staged before they are published.
    is_staged: bool = True
    batch_messages: int = 1000
    reconnect_s: float = 30.0
    is_atomic: bool = True
    #: Whether the target may remove messages soon after it stored them.
    is_volatile: bool = False
    #: Whether the target refuses messages of a subject that has its maximum, so that a repeated row is refused.
    refuses_full_subjects: bool = False
    #: How long the target recognises a message id.
    duplicate_window_s: float = 120.0
    #: Maximum bytes of a message in the target; 0 if only the server's limit applies.
    message_bytes_max: int = 0
    staging_path: str = ""
    dead_letter: str = ""
    legacy_prefix: str = ""
    #: Whether an earlier version may have stored rows of the query with ids, without any record.
    may_have_legacy_ids: bool = False
    claim_upload: ClaimUploadConfig | None = None
    #: The subjects of the target, and source and destination of its transform, if it has one.
    subjects: tuple[str, ...] = ()
    subject_transform: tuple[str, str] | None = None

    @property
    def api_prefix(self) -> str:
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    @property
    def progress_stream(self) -> str:
        return make_progress_stream(self.stream)

    @property
    def staging_stream(self) -> str:
        return make_staging_stream(self.stream)

    @property
    def epoch_subject(self) -> str:
        """Subject of the record of the query's last committed epoch."""
        return f"{_SUBJECT_PREFIX}.progress.{self.stream}.{self.query}.epoch"

    @property
    def position_subject(self) -> str:
        """Subject of the record how far that epoch is published."""
        return f"{_SUBJECT_PREFIX}.progress.{self.stream}.{self.query}.position"

    @property
    def staging_prefix(self) -> str:
        """Prefix of the subjects of the query's staged rows."""
        return f"{_SUBJECT_PREFIX}.staging.{self.stream}.{self.query}"

    @property
    def task_id(self) -> str:
        """Id of the task, used in the ids of its claims."""
        return f"{self.owner or self.query}:{self.epoch}:{self.partition}"

    def make_claim_uploader(self) -> ClaimUploader | None:
        """Return the uploader for large payloads; None if they stay in their messages."""
        if self.claim_upload is None:
            return None
        from headrace.spark.write.claim_upload import ClaimUploader

        return ClaimUploader(self.claim_upload, self.task_id)


def make_progress_stream(stream: str) -> str:
    """Return the name of the stream with the progress of all queries that write to `stream`."""
    return f"SPARK_PROGRESS_{stream}"


def make_staging_stream(stream: str) -> str:
    """Return the name of the stream with the staged rows of all queries that write to `stream`."""
    return f"SPARK_STAGING_{stream}"


def make_progress_filter(stream: str) -> str:
    return f"{_SUBJECT_PREFIX}.progress.{stream}.>"


def make_staging_filter(stream: str) -> str:
    return f"{_SUBJECT_PREFIX}.staging.{stream}.>"
