"""Finds the stream of a subject, and the subjects of a stream."""

from __future__ import annotations

from headrace.cli.exit_codes import NOT_FOUND, USAGE_ERROR, CliError
from headrace.cli.session import CliSession
from headrace.protocol.subjects import is_literal, is_valid


async def find_stream(session: CliSession, subject: str) -> str:
    """Return the stream that captures a subject; raise CliError if none does."""
    if not (is_valid(subject.encode()) and is_literal(subject.encode())):
        raise CliError(f"invalid subject {subject!r}: use one without spaces and wildcards", USAGE_ERROR)
    found = await session.api_request("STREAM.NAMES", {"subject": subject})
    names = found.get("streams") or []
    if not names:
        raise CliError(f"no stream captures {subject}; list streams with 'headrace stream ls'", NOT_FOUND)
    return str(names[0])


async def list_subjects(session: CliSession, stream: str, pattern: str = ">") -> list[str]:
    """Return the subjects of a stream that match a pattern, sorted."""
    found: dict[str, int] = {}
    while True:
        body = {"subjects_filter": pattern, "offset": len(found)}
        response = await session.api_request(f"STREAM.INFO.{stream}", body)
        page = response["state"].get("subjects") or {}
        found |= page
        if not page or len(found) >= response.get("total", 0):
            return sorted(found)
