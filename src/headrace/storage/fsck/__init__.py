"""Checking a store offline, and accepting a loss."""

__all__: list[str] = []
