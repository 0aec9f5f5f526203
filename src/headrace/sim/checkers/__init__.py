"""Checkers: what must hold after every simulated run, and the models they compare with."""

__all__: list[str] = []
