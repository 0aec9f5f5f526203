"""How messages are fetched from a server: the fastest way that the stream's configuration allows."""

from __future__ import annotations

from enum import Enum

from headrace.reader import direct_get_reader, pull_reader
from headrace.reader.range_reader import FetchBlocks, fetch_from_leader
from headrace.reader.stream_admin import StreamInfo


class ReadMethod(Enum):
    """The ways to fetch a range."""

    DIRECT_GET = "direct get"  # any replica replies, many messages per request
    PULL = "pull"  # through an ephemeral consumer
    LEADER = "leader"  # one request per message

    @property
    def fetch(self) -> FetchBlocks:
        """The function that fetches the blocks of a range."""
        return _FETCH[self]


_FETCH: dict[ReadMethod, FetchBlocks] = {
    ReadMethod.DIRECT_GET: direct_get_reader.fetch_blocks,
    ReadMethod.PULL: pull_reader.fetch_blocks,
    ReadMethod.LEADER: fetch_from_leader,
}


def choose_method(stream_info: StreamInfo) -> ReadMethod:
    """Return the fastest way to read a stream that does not change it.

    A consumer on a work queue would take messages away, and one on an interest stream would keep them.
    """
    if stream_info.config.get("allow_direct"):
        return ReadMethod.DIRECT_GET
    return ReadMethod.PULL if stream_info.retention == "limits" else ReadMethod.LEADER
