"""Monitoring over HTTP: what a server says about itself to launchers, probes and dashboards."""

from headrace.monitor.http import Answer, HttpServer, Query, json_answer
from headrace.monitor.varz import varz

__all__ = ["Answer", "HttpServer", "Query", "json_answer", "varz"]
