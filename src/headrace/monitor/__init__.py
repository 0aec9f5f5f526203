"""Monitoring over HTTP, for launchers, health checks and dashboards."""

__all__: list[str] = []
