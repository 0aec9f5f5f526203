"""File I/O: the `Disk` protocol, its implementations, open files and commit latency."""

__all__: list[str] = []
