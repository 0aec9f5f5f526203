"""Background work on segments: flushing blocks, compaction, garbage collection of files."""
