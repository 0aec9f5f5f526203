"""Claim check: payloads too large for a message are stored as claims, and none is lost, leaked or deleted too early.

    claims = await Claims.open(connection, ClaimConfig("video", store={"path": "/srv/claims"}))
    await claims.producer.publish("video.raw", Path("take-1.mov"), content_type="video/quicktime")
    await claims.consumer.handle(message, handler)
    await claims.collector.collect()

It uses nats-py only, and works with Headrace and nats-server alike.
"""

from typing import TYPE_CHECKING

from headrace.claims.ack_floors import register_reader
from headrace.claims.claim_deletion import CollectReport
from headrace.claims.claims import Claims
from headrace.claims.clock import FakeClock
from headrace.claims.config import PRESETS, ClaimConfig, Ttl, from_mapping, load, load_all, preset
from headrace.claims.config_lint import Finding
from headrace.claims.consumer import ClaimConsumer, Received
from headrace.claims.errors import (
    ChecksumMismatch,
    ClaimError,
    ClaimFailure,
    ClaimNotFound,
    ConfigConflict,
    ConfigError,
    Corrupt,
    Expired,
    Forbidden,
    PublishFailed,
    PublishUnknown,
    StoreUnavailable,
    TooLarge,
)
from headrace.claims.message_resolver import ResolvedMessage
from headrace.claims.metrics import Metrics
from headrace.claims.producer import ClaimProducer
from headrace.claims.reference import CLAIM_HEADER, Reference
from headrace.claims.reference_publisher import Published
from headrace.claims.stores import FolderStore, MemoryStore, ObjectStore, ObjectStoreError, open_store
from headrace.claims.wrapped_jetstream import ClaimJetStream
from headrace.clock import Clock, SystemClock
from headrace.deprecation import renamed_names

__all__ = [
    "CLAIM_HEADER",
    "PRESETS",
    "ChecksumMismatch",
    "ClaimConfig",
    "ClaimConsumer",
    "ClaimError",
    "ClaimFailure",
    "ClaimJetStream",
    "ClaimNotFound",
    "ClaimProducer",
    "Claims",
    "Clock",
    "CollectReport",
    "ConfigConflict",
    "ConfigError",
    "Corrupt",
    "Expired",
    "FakeClock",
    "Finding",
    "FolderStore",
    "Forbidden",
    "MemoryStore",
    "Metrics",
    "ObjectStore",
    "ObjectStoreError",
    "PublishFailed",
    "PublishUnknown",
    "Published",
    "Received",
    "Reference",
    "ResolvedMessage",
    "StoreUnavailable",
    "SystemClock",
    "TooLarge",
    "Ttl",
    "from_mapping",
    "load",
    "load_all",
    "open_store",
    "preset",
    "register_reader",
]

if not TYPE_CHECKING:
    __getattr__ = renamed_names(
        __name__,
        {
            "Consumer": "ClaimConsumer",
            "Disagreement": "ConfigConflict",
            "NotFound": "ClaimNotFound",
            "Producer": "ClaimProducer",
            "Report": "CollectReport",
            "StoreError": "ObjectStoreError",
            "Unavailable": "StoreUnavailable",
        },
    )
