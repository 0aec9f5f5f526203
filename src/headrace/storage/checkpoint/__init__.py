"""Checkpoints and recovery: writing them, loading them, replaying the journal after them."""
