"""Named classes for API errors: each says what was wrong and what to do about it.

Every class has two parents: Headrace's root class, and the class that nats-py raises for the same response, so that
code written for nats-py still catches it. Owns the table from error codes to classes; must not know requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Self

import nats.errors
import nats.js.errors as theirs

from headrace.client.message_errors import DecodeFailed as DecodeFailed
from headrace.client.message_errors import InvalidSubject as InvalidSubject
from headrace.client.message_errors import MessagesNotStored as MessagesNotStored
from headrace.errors import HeadraceError


class Member(NamedTuple):
    """A message of a batch: its position, from 1, and its subject."""

    position: int
    subject: str


class JetStreamError(HeadraceError, theirs.APIError):
    """A server rejected a request; `code`, `err_code` and `description` are from its response.

    In a batch, `member` is the rejected message if that is certain, and `candidates` are those that it may have been.
    """

    CODE: ClassVar[int] = 0
    ERR_CODE: ClassVar[int] = 0
    remedy: ClassVar[str] = ""
    member: Member | None = None
    candidates: tuple[Member, ...] = ()

    def __init__(self, code: int | None, err_code: int | None, description: str | None) -> None:
        HeadraceError.__init__(self, description)
        theirs.APIError.__init__(self, code, description, err_code)

    @classmethod
    def refuse(cls, description: str) -> Self:
        """Make the same error, found before anything was sent."""
        return cls(cls.CODE, cls.ERR_CODE, description)

    def __str__(self) -> str:
        member_text = ""
        if self.member:
            member_text = f"batch member {self.member.position} ({self.member.subject}): "
        elif self.candidates:
            shown = ", ".join(str(candidate.position) for candidate in self.candidates[:5])
            member_text = f"batch member {shown}{', ...' if len(self.candidates) > 5 else ''}: "
        codes = f" [{self.code}/{self.err_code}]" if self.err_code else ""
        return f"{member_text}{self.description}{codes}{self.remedy and f'; {self.remedy}'}"

    def __reduce__(self) -> Any:
        state = {"member": self.member, "candidates": self.candidates}
        return type(self), (self.code, self.err_code, self.description), state


class BadRequest(JetStreamError, theirs.BadRequestError):
    """The request is invalid (400)."""

    CODE = 400


class NotFound(JetStreamError, theirs.NotFoundError):
    """What the request names does not exist (404)."""

    CODE = 404


class ServerFault(JetStreamError, theirs.ServerError):
    """The server failed (500); this includes rejected configurations."""

    CODE = 500


class Unavailable(JetStreamError, theirs.ServiceUnavailableError):
    """The server cannot serve the request now (503)."""

    CODE = 503


class WrongLastSequence(BadRequest):
    """Somebody wrote in between: the expected last sequence is not the actual one."""

    ERR_CODE = 10071
    remedy = "read again and retry with the new sequence"

    @property
    def actual(self) -> int | None:
        """The sequence that the server has, if it reports it."""
        found = re.search(r": (\d+)$", self.description or "")
        return int(found[1]) if found else None


class WrongRevision(WrongLastSequence, theirs.KeyWrongLastSequenceError):
    """The key's revision is not the expected one."""

    remedy = "get the key again and retry with its revision"


class KeyExists(WrongRevision):
    """create() found a value; `revision` is its revision if a single key was created."""

    remedy = "use put() or update() to change a key that exists"
    revision: int | None = None


class KeyNotFound(NotFound, theirs.KeyNotFoundError):
    """The key has no value: never written, deleted, purged or expired. `entry` is its marker, if there is one."""

    ERR_CODE = 10037

    def __init__(self, code: int | None, err_code: int | None, description: str | None) -> None:
        super().__init__(code, err_code, description)
        self.entry: Any = None
        self.op: Any = None
        self.message: str | None = description


class NoKeys(NotFound, theirs.NoKeysError):
    """No key matches."""


class StreamNotFound(NotFound):
    """There is no such stream."""

    ERR_CODE = 10059
    remedy = "create it with add_stream(), or check the name and the domain"


class BucketNotFound(StreamNotFound, theirs.BucketNotFoundError):
    """There is no such bucket."""

    remedy = "create it with create_key_value(), or check the name and the domain"


class StreamExists(BadRequest):
    """A stream of that name has another configuration."""

    ERR_CODE = 10058
    remedy = "change it with update_stream(), or choose another name"


class BucketExists(StreamExists):
    """A bucket of that name has another configuration."""

    remedy = "bind to it with key_value(), or change it with update_key_value()"


class BadBucket(BadRequest, theirs.BadBucketError):
    """The stream of that name is not a bucket."""


class ConsumerNotFound(NotFound):
    """There is no such consumer."""

    ERR_CODE = 10014
    remedy = "create it with add_consumer(), or check the name"


class InvalidReset(BadRequest, theirs.ConsumerInvalidResetError):
    """The consumer's deliver policy does not allow this reset."""

    ERR_CODE = 10204
    remedy = "reset without seq, or to a sequence at or after the consumer's start"


class InvalidTTL(BadRequest):
    """The server cannot parse the TTL."""

    ERR_CODE = 10165
    remedy = 'use at least one second, for example 90, "1m30s" or timedelta(minutes=1)'


class TTLDisabled(BadRequest):
    """The stream does not allow TTLs for single messages."""

    ERR_CODE = 10166
    remedy = "set allow_msg_ttl on the stream, or limit_markers on the bucket with update_key_value()"


class MessageTooLarge(BadRequest):
    """Headers and payload exceed the stream's max_msg_size (a bucket's max_value_size)."""

    ERR_CODE = 10054
    remedy = "store less, or raise the limit with an update"


class StreamFull(Unavailable):
    """The stream rejects new messages because one of its limits is reached."""

    ERR_CODE = 10077
    remedy = "delete or purge messages, or raise max_bytes or max_msgs"


class StreamMismatch(BadRequest):
    """The subject belongs to a stream other than the expected one."""

    ERR_CODE = 10060


class RollupRefused(ServerFault):
    """The stream does not allow this rollup."""

    ERR_CODE = 10111
    remedy = "set allow_rollup_hdrs on the stream; in a batch, roll up a subject before writing to it"


class InvalidConfig(ServerFault):
    """The configuration is rejected."""

    ERR_CODE = 10052


class MissingSubjectSequence(BadRequest):
    """expect_last_subject was given without expect_last_subject_sequence."""

    ERR_CODE = 10193
    remedy = "set expect_last_subject_sequence as well"


class LevelTooLow(JetStreamError):
    """The server's API is older than the request requires."""

    CODE = 412
    ERR_CODE = 10185
    remedy = "use a newer server"


class KeyedUnsupported(BadRequest):
    """The server has neither order per key nor dead letters: it is not Headrace, or an earlier version."""


class LimitMarkersUnsupported(LevelTooLow, theirs.KeyValueLimitMarkerTTLNotSupportedError):
    """Limit markers need API level 1 (nats-server 2.11)."""


class LimitMarkersPermanent(BadRequest):
    """Limit markers can be enabled on a bucket and changed, but not disabled."""

    remedy = "create a new bucket without limit_markers"


class AtomicDisabled(BadRequest):
    """The stream does not allow atomic batches."""

    ERR_CODE = 10174
    remedy = "set allow_atomic on the stream, or on the bucket with update_key_value()"


class BatchIncomplete(BadRequest):
    """The server does not know the batch (any more), or missed one of its messages; nothing was stored."""

    ERR_CODE = 10176
    remedy = (
        "send the whole batch again; the server abandons one that pauses for 10 s or whose connection broke"
    )


class BatchTooLarge(BadRequest):
    """More messages than a server accepts in one batch."""

    ERR_CODE = 10199
    remedy = "split it into smaller batches"


class BatchHeaderUnsupported(BadRequest):
    """A header that batches do not support."""

    ERR_CODE = 10177


class DuplicateInBatch(BadRequest):
    """A msg_id occurs twice in the batch, or was stored within the stream's duplicate window."""

    ERR_CODE = 10201
    remedy = "remove the message: it is already stored, or in the batch twice"


class TooManyBatches(JetStreamError):
    """The stream or the server has as many open batches as it allows."""

    CODE = 429
    ERR_CODE = 10210
    remedy = "wait until other batches are committed, then send the whole batch again"


class BatchClosed(HeadraceError):
    """The batch is committed or abandoned; start another one."""


class NoStream(HeadraceError, theirs.NoStreamResponseError):
    """No stream listens on the subject."""

    def __init__(self, subject: str) -> None:
        HeadraceError.__init__(self, subject)
        self.subject = subject

    def __str__(self) -> str:
        return f"no stream stores {self.subject!r}; create one with add_stream(), or check the subject"


class NoAnswer(HeadraceError, nats.errors.TimeoutError):
    """The server did not reply in time; whether it acted is unknown."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else "no reply in time"


class OutcomeUnknown(NoAnswer):
    """There was no reply to a commit in time: the batch is stored completely, or not at all.

    Send it again with expected sequences or message ids, which make the second one fail if the first was stored.
    """


def _iter_subclasses(kind: type[JetStreamError]) -> Iterator[type[JetStreamError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _iter_subclasses(child)


#: Parents come first, so that a code maps to the general class and callers choose the specific one.
_CLASS_BY_ERR_CODE: dict[int, type[JetStreamError]] = {10164: WrongLastSequence}
for _kind in _iter_subclasses(JetStreamError):
    if "ERR_CODE" in vars(_kind) and _kind is not KeyNotFound:
        _CLASS_BY_ERR_CODE.setdefault(_kind.ERR_CODE, _kind)
_CLASS_BY_CODE: dict[int, type[JetStreamError]] = {
    400: BadRequest,
    404: NotFound,
    500: ServerFault,
    503: Unavailable,
}


def make_error(response: dict[str, Any]) -> JetStreamError:
    """Return the named error of an API error object `{"code", "err_code", "description"}`."""
    code, err_code = int(response.get("code") or 0), int(response.get("err_code") or 0)
    kind = _CLASS_BY_ERR_CODE.get(err_code) or _CLASS_BY_CODE.get(code, JetStreamError)
    return kind(
        code,
        err_code,
        str(response.get("description") or "the server returned an error without a description"),
    )


def translate_error(error: JetStreamError, kind: type[JetStreamError]) -> JetStreamError:
    """Return the same response as a more specific class."""
    translated = kind(error.code, error.err_code, error.description)
    translated.member, translated.candidates = error.member, error.candidates
    return translated


@contextmanager
def translate_nats_errors(target: str = "the request") -> Iterator[None]:
    """Translate nats-py's exceptions to Headrace's."""
    try:
        yield
    except HeadraceError:
        raise
    except theirs.APIError as error:
        names = ("code", "err_code", "description")
        raise make_error({name: getattr(error, name, None) for name in names}) from error
    except (theirs.NoStreamResponseError, nats.errors.NoRespondersError) as error:
        raise NoStream(target) from error
    except nats.errors.TimeoutError as error:
        raise NoAnswer(
            f"no reply to {target} in time; check that the server is reachable and this user has the permissions"
        ) from error
