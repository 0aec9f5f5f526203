"""Where payloads lie: one small interface, and the folder, memory, S3, Google and Azure behind it."""

from __future__ import annotations

from headrace.claims.clock import Clock
from headrace.claims.config import ClaimConfig
from headrace.claims.errors import ConfigError
from headrace.claims.stores.base import (
    Attributes,
    BucketMissing,
    BucketThere,
    Chunk,
    Denied,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    ObjectThere,
    Plain,
    QuotaExceeded,
    StoreError,
    Upload,
)
from headrace.claims.stores.folder import FolderStore
from headrace.claims.stores.memory import MemoryStore

__all__ = [
    "Attributes",
    "BucketMissing",
    "BucketThere",
    "Chunk",
    "Denied",
    "FolderStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectMissing",
    "ObjectStore",
    "ObjectThere",
    "Plain",
    "QuotaExceeded",
    "StoreError",
    "Upload",
    "open_store",
]


def open_store(config: ClaimConfig, clock: Clock | None = None) -> ObjectStore:
    """The store that a configuration names; nothing is connected or created yet."""
    settings = config.store
    if config.backend == "memory":
        return MemoryStore(config.bucket, clock)
    if config.backend == "folder":
        return FolderStore(
            settings.get("path", "claims-data"), config.bucket, sync=settings.get("sync", True)
        )
    try:
        if config.backend == "gcs":
            from headrace.claims.stores.gcs import gcs_store

            return gcs_store(config.bucket, settings)
        if config.backend == "azure":
            from headrace.claims.stores.azure import azure_store

            return azure_store(config.bucket, settings)
        from headrace.claims.stores.s3 import s3_store

        return s3_store(config.bucket, settings)
    except ModuleNotFoundError as error:
        extra = {"minio": "s3"}.get(config.backend, config.backend)
        raise ConfigError(
            "claim_check.backend", f"{config.backend} needs more: pip install 'headrace[{extra}]' ({error})"
        ) from error
