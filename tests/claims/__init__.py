"""Tests of the claim check."""
