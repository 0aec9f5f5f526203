"""Validation of stream and consumer configurations, with nats-server's rules and errors."""

__all__: list[str] = []
