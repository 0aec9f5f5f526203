"""Exit codes that scripts can rely on, and the messages printed for errors.

Owns the table from errors to exit codes and to the command that helps. Must not import a client before there is an
error to explain. See ADR 81.
"""

from __future__ import annotations

import builtins
import json

OK = 0
FAILED = 1
USAGE_ERROR = 2
NOT_FOUND = 3
CONFLICT = 4
NO_CONNECTION = 5
NO_ANSWER = 6
TO_CHANGE = 7
REFUSED = 8
INTERRUPTED = 130
CLOSED_PIPE = 141

#: Meaning of the codes, for the documentation.
DESCRIPTIONS = {
    OK: "done",
    FAILED: "the server returned an error, the command failed, or a confirmation was declined",
    USAGE_ERROR: "the command line is invalid; nothing was done",
    NOT_FOUND: "the stream, consumer, message, bucket, key or context does not exist",
    CONFLICT: "conflict: the key or context already exists, or the revision or last sequence is a different one",
    NO_CONNECTION: "cannot connect, the credentials were rejected, or the connection was lost",
    NO_ANSWER: "no responders, or no response before the timeout; the request may have been carried out",
    TO_CHANGE: "`migrate check`: the new server differs in something that you should change",
    REFUSED: "`migrate check`: the new server refuses something, or a move cannot do it",
    INTERRUPTED: "interrupted with Ctrl-C",
    CLOSED_PIPE: "the output pipe was closed (`| head`)",
}

#: Advice for client errors for which the command line has its own wording.
_REMEDIES = {
    "StreamNotFound": "list streams with 'headrace stream ls'",
    "BucketNotFound": "list buckets with 'headrace kv ls', or create one with 'headrace kv add'",
    "ConsumerNotFound": "list a stream's consumers with 'headrace consumer ls'",
    "KeyNotFound": "list keys with 'headrace kv keys'",
    "BucketExists": "change it with 'headrace kv edit' or 'headrace stream edit'",
    "KeyExists": "change an existing key with 'headrace kv put' or 'headrace kv update'",
    "WrongRevision": "get the current revision with 'headrace kv get'",
    "AtomicDisabled": "allow batches with 'headrace stream edit NAME --allow-atomic'",
    "TTLDisabled": "allow TTLs with 'headrace stream edit NAME --allow-msg-ttl' or 'headrace kv edit BUCKET --markers 1h'",
    "InvalidTTL": "use at least one second, for example 90s or 1h",
    "BatchTooLarge": "split the input into smaller batches",
}


#: The same for errors without a class of their own, by the server's error code.
_REMEDIES_BY_CODE = {10065: "find it with 'headrace stream ls --subject SUBJECT'"}


class CliError(Exception):
    """The final message of a command, and its exit code."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


def to_cli_error(error: Exception) -> CliError:
    """Return the message and exit code for an error; raise it again if it is a bug of ours."""
    if isinstance(error, CliError):
        return error
    if isinstance(error, json.JSONDecodeError):
        return CliError(f"invalid JSON: {error}", USAGE_ERROR)
    if isinstance(error, ValueError | TypeError) and not _is_client_error(error):
        return CliError(str(error), USAGE_ERROR)
    return _from_client_error(error) or _from_system_error(error)


def _is_client_error(error: Exception) -> bool:
    from nats.errors import Error

    from headrace.errors import HeadraceError

    return isinstance(error, HeadraceError | Error)


def _from_client_error(error: Exception) -> CliError | None:
    import nats.errors
    import nats.js.errors as theirs

    from headrace.client import errors as ours
    from headrace.errors import HeadraceError
    from headrace.reader.blocking_connection import ConnectionFailed

    if is_jetstream_missing(error):
        text = "JetStream does not respond: it is not enabled on the server or for this account"
        return CliError(text, NO_ANSWER)
    if isinstance(error, ours.JetStreamError):
        return CliError(_format_error(error), _exit_code_for(error))
    if isinstance(error, theirs.NotFoundError):
        return CliError(str(error.description or error), NOT_FOUND)
    if isinstance(error, ours.NoStream | ours.NoAnswer):
        return CliError(str(error), NO_ANSWER)
    if isinstance(error, nats.errors.NoRespondersError):
        return CliError("no responders: nothing is subscribed to this subject", NO_ANSWER)
    if isinstance(error, nats.errors.TimeoutError | builtins.TimeoutError):
        return CliError("no response before the timeout; use --timeout to wait longer", NO_ANSWER)
    if isinstance(error, nats.errors.ConnectionClosedError | nats.errors.NoServersError):
        return CliError("the connection was lost", NO_CONNECTION)
    if isinstance(error, ConnectionFailed):
        return CliError(str(error), NO_CONNECTION)
    if isinstance(error, nats.errors.BadSubjectError):
        return CliError("invalid subject: use tokens without spaces, separated by single dots", USAGE_ERROR)
    if isinstance(error, nats.errors.MaxPayloadError):
        return CliError("the payload exceeds the server's max_payload; see 'headrace server info'", FAILED)
    if isinstance(error, HeadraceError) and isinstance(error, ValueError):
        return CliError(str(error), USAGE_ERROR)
    if isinstance(error, nats.errors.Error | HeadraceError):
        return CliError(str(error).removeprefix("nats: ") or type(error).__name__)
    return None


def is_jetstream_missing(error: Exception) -> bool:
    """Return whether JetStream's API does not respond: an error without the details that JetStream would give."""
    from nats.js.errors import ServiceUnavailableError

    return isinstance(error.__cause__, ServiceUnavailableError) and not error.__cause__.err_code


def _format_error(error: object) -> str:
    """Return the server's error, and what helps."""
    from headrace.client.errors import JetStreamError

    assert isinstance(error, JetStreamError)
    remedies = (_REMEDIES.get(kind.__name__) for kind in type(error).__mro__)
    remedy = next((found for found in remedies if found), _REMEDIES_BY_CODE.get(error.err_code or 0))
    if remedy is None:
        return str(error)
    member_text = f"message {error.member.position} ({error.member.subject}): " if error.member else ""
    return f"{member_text}{error.description}; {remedy}"


def _exit_code_for(error: object) -> int:
    from headrace.client import errors as ours

    if isinstance(error, ours.NotFound):
        return NOT_FOUND
    if isinstance(error, ours.WrongLastSequence):
        return CONFLICT
    return FAILED


def _from_system_error(error: Exception) -> CliError:
    if isinstance(error, FileNotFoundError):
        return CliError(f"{error.filename}: no such file or folder", NOT_FOUND)
    if isinstance(error, ConnectionError):
        return CliError(f"the connection was lost: {error}", NO_CONNECTION)
    if isinstance(error, OSError):
        return CliError(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    if isinstance(error, ModuleNotFoundError):
        has_advice = "pip install" in str(error)
        advice = f"the package {error.name} is not installed: pip install {error.name}"
        return CliError(str(error) if has_advice else advice)
    raise error
