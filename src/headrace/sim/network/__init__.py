"""Simulated clients, connections and servers."""
