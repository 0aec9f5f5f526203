"""Handlers of JetStream API requests: dispatch, streams, consumers, direct get, backup and restore."""

__all__: list[str] = []
