"""Mirrors and sources: replicators, upstream consumers, and how copies are stored."""

__all__: list[str] = []
