"""Finds the streams that a query reads: those that it names, or those whose names match its pattern.

Owns the selection. A pattern is a regular expression that matches a whole name.
"""

from __future__ import annotations

import re

from headrace.reader.options import ReadOptions
from headrace.reader.stream_admin import list_stream_names
from headrace.storage.snapshot.offline_pin import list_streams_offline


def find_streams(options: ReadOptions) -> list[str]:
    """Return the names of the streams, sorted; a named stream is returned whether or not it exists."""
    if not options.stream_pattern:
        return sorted(options.streams)
    pattern = re.compile(options.stream_pattern)
    is_offline = options.path and not options.servers_given
    names = list_streams_offline(options.path) if is_offline else list_stream_names(options)
    return sorted(name for name in names if pattern.fullmatch(name))
