"""Opening a store: checkpoint and journal become a running store again."""
