"""Streams: the publish path, limits, retention, TTLs, atomic batches, counters and schedules."""

__all__: list[str] = []
