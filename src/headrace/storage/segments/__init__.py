"""Segments: sealed and growing blocks of records, and their column files."""
