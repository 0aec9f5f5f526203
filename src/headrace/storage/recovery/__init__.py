"""Opening a store: builds a running store from checkpoint and journal."""

__all__: list[str] = []
