"""Monitoring over HTTP, for launchers, health checks and dashboards."""
