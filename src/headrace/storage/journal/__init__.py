"""The journal (write-ahead log): its files, the sync marker, and scanning after a crash."""

__all__: list[str] = []
