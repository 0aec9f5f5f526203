"""Chooses how a stream is read.

Owns the choice: nothing else asks whether there is a server, or what kind of path is given.
"""

from __future__ import annotations

from headrace.reader.broker_sources import HttpSource, ServerSource, SharedDiskSource
from headrace.reader.offline_source import OfflineSource
from headrace.reader.options import ReadOptions
from headrace.reader.read_source import ReadSource


def open_source(options: ReadOptions) -> ReadSource:
    """Return the source that the options select."""
    if options.path and not options.servers_given:
        return OfflineSource(options)
    if options.is_http_path:
        return HttpSource(options)
    return SharedDiskSource(options) if options.path else ServerSource(options)
