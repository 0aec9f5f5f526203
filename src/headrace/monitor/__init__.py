"""Monitoring over HTTP: what a server says about itself to launchers, probes and dashboards."""

from headrace.monitor.http import Answer, HttpServer, Query, json_answer
from headrace.monitor.pages import pages
from headrace.monitor.varz import Vitals, varz

__all__ = ["Answer", "HttpServer", "Query", "Vitals", "json_answer", "pages", "varz"]
