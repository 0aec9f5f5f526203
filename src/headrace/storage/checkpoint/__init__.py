"""Checkpoints: writing them and loading them."""

__all__: list[str] = []
