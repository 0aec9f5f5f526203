"""Segments: sealed and growing blocks of records, and their column files."""

__all__: list[str] = []
