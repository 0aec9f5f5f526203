"""Consumers: delivery, acknowledgements, pull requests, push delivery, and their durable state."""

__all__: list[str] = []
