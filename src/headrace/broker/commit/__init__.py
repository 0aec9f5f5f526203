"""Group commit and its surroundings: quotas, storage usage, disk backpressure, advisories, event history."""

__all__: list[str] = []
