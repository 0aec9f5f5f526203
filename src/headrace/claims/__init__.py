"""Claim check: payloads too large for a message travel as claims, and none is lost, leaked or deleted too early.

    claims = await Claims.open(connection, ClaimConfig("video", store={"path": "/srv/claims"}))
    await claims.producer.publish("video.raw", Path("take-1.mov"), content_type="video/quicktime")
    await claims.consumer.handle(message, handler)
    await claims.collector.collect()

It uses nats-py only, and works on Headrace and nats-server alike.
"""

from headrace.claims.claims import Claims
from headrace.claims.clock import Clock, FakeClock, SystemClock
from headrace.claims.config import PRESETS, ClaimConfig, Ttl, from_mapping, load, load_all, preset
from headrace.claims.consumer import Consumer, Received
from headrace.claims.errors import (
    ChecksumMismatch,
    ClaimError,
    ClaimFailure,
    ConfigError,
    Corrupt,
    Disagreement,
    Expired,
    Forbidden,
    NotFound,
    PublishFailed,
    PublishUnknown,
    TooLarge,
    Unavailable,
)
from headrace.claims.floors import register_reader
from headrace.claims.lint import Finding
from headrace.claims.metrics import Metrics
from headrace.claims.producer import Producer, Published
from headrace.claims.reference import CLAIM_HEADER, Reference
from headrace.claims.removal import Report
from headrace.claims.stores import FolderStore, MemoryStore, ObjectStore, StoreError, open_store

__all__ = [
    "CLAIM_HEADER",
    "PRESETS",
    "ChecksumMismatch",
    "ClaimConfig",
    "ClaimError",
    "ClaimFailure",
    "Claims",
    "Clock",
    "ConfigError",
    "Consumer",
    "Corrupt",
    "Disagreement",
    "Expired",
    "FakeClock",
    "Finding",
    "FolderStore",
    "Forbidden",
    "MemoryStore",
    "Metrics",
    "NotFound",
    "ObjectStore",
    "Producer",
    "PublishFailed",
    "PublishUnknown",
    "Published",
    "Received",
    "Reference",
    "Report",
    "StoreError",
    "SystemClock",
    "TooLarge",
    "Ttl",
    "Unavailable",
    "from_mapping",
    "load",
    "load_all",
    "open_store",
    "preset",
    "register_reader",
]
