"""Object stores for payloads: one small interface, implemented for folders, memory, S3, Google and Azure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.claims.config import ClaimConfig
from headrace.claims.errors import ConfigError
from headrace.claims.stores.combined import CombinedStore
from headrace.claims.stores.folder import FolderStore
from headrace.claims.stores.memory import MemoryStore
from headrace.claims.stores.object_store import (
    AccessDenied,
    Attributes,
    BucketAlreadyExists,
    BucketMissing,
    Chunk,
    MultipartUpload,
    ObjectAlreadyExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
    QuotaExceeded,
    StaticAttributes,
    VersionedStore,
)
from headrace.claims.stores.versioned_folder import VersionedFolderStore
from headrace.clock import Clock
from headrace.deprecation import renamed_names

__all__ = [
    "AccessDenied",
    "Attributes",
    "BucketAlreadyExists",
    "BucketMissing",
    "Chunk",
    "CombinedStore",
    "FolderStore",
    "MemoryStore",
    "MultipartUpload",
    "ObjectAlreadyExists",
    "ObjectInfo",
    "ObjectMissing",
    "ObjectStore",
    "ObjectStoreError",
    "QuotaExceeded",
    "StaticAttributes",
    "VersionedFolderStore",
    "VersionedStore",
    "open_store",
]


def open_store(config: ClaimConfig, clock: Clock | None = None) -> ObjectStore:
    """Return the store that a configuration names, with those in `read_from`; nothing is connected or created yet."""
    store = _open_single_store(config, clock)
    if not config.read_from:
        return store
    return CombinedStore(store, [_open_single_store(each, clock) for each in config.read_configs()])


def _open_single_store(config: ClaimConfig, clock: Clock | None) -> ObjectStore:
    settings = config.store
    if config.backend == "memory":
        return MemoryStore(config.bucket, clock)
    if config.backend == "folder":
        return FolderStore(
            settings.get("path", "claims-data"), config.bucket, sync=settings.get("sync", True)
        )
    try:
        if config.backend == "gcs":
            from headrace.claims.stores.gcs import make_gcs_store

            return make_gcs_store(config.bucket, settings)
        if config.backend == "azure":
            from headrace.claims.stores.azure import make_azure_store

            return make_azure_store(config.bucket, settings)
        from headrace.claims.stores.s3 import make_s3_store

        return make_s3_store(config.bucket, settings)
    except ModuleNotFoundError as error:
        extra = {"minio": "s3"}.get(config.backend, config.backend)
        raise ConfigError(
            "claim_check.backend",
            f"{config.backend} needs additional packages: pip install 'headrace[{extra}]' ({error})",
        ) from error


if not TYPE_CHECKING:
    __getattr__ = renamed_names(
        __name__,
        {
            "BucketThere": "BucketAlreadyExists",
            "Denied": "AccessDenied",
            "ObjectThere": "ObjectAlreadyExists",
            "Plain": "StaticAttributes",
            "StoreError": "ObjectStoreError",
            "Upload": "MultipartUpload",
        },
    )
