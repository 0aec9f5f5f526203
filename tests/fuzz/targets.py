"""The table of fuzz targets: what each is called, and its part of all inputs."""

from . import api, conf, headers, leaf, store, websocket, wire
from .target import Start

TARGETS: dict[str, tuple[Start, float]] = {
    "wire": (wire.start, 0.28),
    "headers": (headers.start, 0.33),
    "websocket": (websocket.start, 0.15),
    "leaf": (leaf.start, 0.15),
    "api": (api.start, 0.05),
    "conf": (conf.start, 0.032),
    "store": (store.start, 0.008),
}
