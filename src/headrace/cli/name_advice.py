"""Explains errors of commands with what the server knows: similar names for a typing error, and denied permissions.

Owns these explanations. Asks the server only after an error, and returns the error as it is if that fails.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from headrace.cli.exit_codes import NO_ANSWER, NOT_FOUND, CliError, to_cli_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.cli.session import CliSession

_NAMES_MAX = 3


async def explain_error(session: CliSession, error: Exception, values: Mapping[str, Any]) -> Exception:
    """Return the error of a command with these arguments, or one that says more."""
    from headrace.client import errors
    from headrace.errors import HeadraceError

    if session.denied and to_cli_error(error).code == NO_ANSWER:
        return CliError(session.denied)
    try:
        if isinstance(error, errors.BucketNotFound):
            names = await session.list_all("STREAM.NAMES", "streams")
            buckets = [name.removeprefix("KV_") for name in map(str, names) if name.startswith("KV_")]
            return _suggest(error, values.get("bucket"), buckets)
        if isinstance(error, errors.StreamNotFound):
            return _suggest(error, values.get("stream"), await session.list_all("STREAM.NAMES", "streams"))
        if isinstance(error, errors.ConsumerNotFound):
            call = f"CONSUMER.NAMES.{values.get('stream')}"
            return _suggest(error, values.get("consumer"), await session.list_all(call, "consumers"))
    except HeadraceError:
        return error
    return error


def _suggest(error: Exception, name: object, names: list[Any]) -> Exception:
    """Return the error with similar names, if there are any."""
    by_folded = {str(each).casefold(): str(each) for each in names}
    if not isinstance(name, str) or name in names:
        return error
    similar = get_close_matches(name.casefold(), by_folded, _NAMES_MAX)
    description, _, remedy = str(to_cli_error(error)).partition("; ")
    described = description if repr(name) in description else f"{description}: {name!r}"
    question = " or ".join(repr(by_folded[each]) for each in similar)
    advice = f"did you mean {question}? Otherwise {remedy}" if similar else remedy
    return CliError(f"{described}; {advice}", NOT_FOUND)
