"""Monitoring over HTTP: what a server says about itself to launchers, probes and dashboards."""
