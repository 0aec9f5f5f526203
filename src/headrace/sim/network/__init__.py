"""Simulated clients, connections and servers."""

__all__: list[str] = []
