"""Checking a store offline, and accepting a loss."""
