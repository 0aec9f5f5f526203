"""The table of fuzz targets: their names, and their shares of all inputs."""

from . import (
    api,
    client_protocol,
    config_files,
    disk,
    headers,
    http_requests,
    leafnode_protocol,
    replies,
    snappy,
    store,
    transforms,
    websocket,
)
from .target import Start

TARGETS: dict[str, tuple[Start, float]] = {
    "wire": (client_protocol.start, 0.25),
    "headers": (headers.start, 0.27),
    "http": (http_requests.start, 0.02),
    "transforms": (transforms.start, 0.02),
    "websocket": (websocket.start, 0.14),
    "leaf": (leafnode_protocol.start, 0.14),
    "api": (api.start, 0.05),
    "conf": (config_files.start, 0.03),
    "replies": (replies.start, 0.036),
    "snappy": (snappy.start, 0.03),
    "store": (store.start, 0.008),
    "disk": (disk.start, 0.006),
}
