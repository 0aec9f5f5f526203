"""Finds the streams that a query reads: those that it names, or those whose names match its pattern.

Owns the selection. A pattern is a regular expression that matches a whole name.
"""

from __future__ import annotations

import re

from headrace.reader.options import ReadOptions
from headrace.reader.stream_admin import StreamMissing, fetch_info, list_stream_names
from headrace.storage.snapshot.offline_pin import list_streams_offline


def find_streams(options: ReadOptions) -> list[str]:
    """Return the names of the streams, sorted; a named stream is returned whether or not it exists."""
    if not options.stream_pattern:
        return sorted(options.streams)
    pattern = re.compile(options.stream_pattern)
    names = list_streams_offline(options.path) if _is_offline(options) else list_stream_names(options)
    return sorted(name for name in names if pattern.fullmatch(name))


def is_selected(options: ReadOptions, name: str) -> bool:
    """Return whether the query reads a stream of this name if there is one."""
    if options.stream_pattern:
        return re.fullmatch(options.stream_pattern, name) is not None
    return name in options.streams


def is_there(options: ReadOptions, name: str) -> bool:
    """Return whether a stream exists, without a listing of all streams, which may be incomplete."""
    if _is_offline(options):
        return name in list_streams_offline(options.path)
    try:
        fetch_info(options.for_stream(name))
    except StreamMissing:
        return False
    return True


def _is_offline(options: ReadOptions) -> bool:
    return bool(options.path) and not options.servers_given
