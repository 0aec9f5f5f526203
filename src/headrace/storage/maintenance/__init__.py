"""Background work on segments: flushing blocks, compaction, garbage collection of files."""

__all__: list[str] = []
