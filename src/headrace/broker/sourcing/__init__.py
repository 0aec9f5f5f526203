"""Mirrors and sources: replicators, upstream consumers, and how copies are stored."""
