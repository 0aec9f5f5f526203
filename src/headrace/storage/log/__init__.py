"""Logs: one stream's messages on disk or in memory, with their index and filters."""

__all__: list[str] = []
