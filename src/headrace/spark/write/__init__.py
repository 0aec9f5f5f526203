"""The Spark sink: rows become messages, stored exactly once."""

__all__: list[str] = []
