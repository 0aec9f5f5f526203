"""The files of the web page; they are part of the package and load nothing from elsewhere."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from headrace.monitor.http import HttpResponse

_SCRIPTS = (
    "api",
    "buckets",
    "charts",
    "consumers",
    "dom",
    "headrace",
    "messages",
    "overview",
    "schedules",
    "streams",
    "tables",
)
_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "headrace.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    **{f"{name}.js": "text/javascript; charset=utf-8" for name in _SCRIPTS},
}
#: The browser loads and runs only the page's own files, so that message contents cannot inject any.
_HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-cache"),
)


@cache
def get_asset(name: str) -> HttpResponse | None:
    """Return a file of the page; None if there is no such file."""
    if name not in _TYPES:
        return None
    return HttpResponse(200, _TYPES[name], (files("headrace.monitor") / "web" / name).read_bytes(), _HEADERS)
