"""Workloads: the actors and events of a simulated run, and the options a seed chooses."""

__all__: list[str] = []
