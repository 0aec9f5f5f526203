"""Checkpoints: writing them and loading them."""
