"""Snapshots: leases on a stream's files, and reading them as Arrow from other processes."""

__all__: list[str] = []
