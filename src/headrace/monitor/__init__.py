"""Monitoring over HTTP: what a server says about itself to launchers, probes and dashboards."""

from headrace.monitor.connz import connz
from headrace.monitor.http import Answer, HttpRequest, HttpServer, json_answer
from headrace.monitor.pages import METHODS, pages
from headrace.monitor.query import Query
from headrace.monitor.varz import Vitals, varz

__all__ = [
    "METHODS",
    "Answer",
    "HttpRequest",
    "HttpServer",
    "Query",
    "Vitals",
    "connz",
    "json_answer",
    "pages",
    "varz",
]
