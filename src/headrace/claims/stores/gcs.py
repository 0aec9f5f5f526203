"""Google Cloud Storage: data through obstore, buckets and lifecycle through Google's own library (an extra)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.claims.stores.lifecycle import LifecycleRule
from headrace.claims.stores.object_store import ObjectStoreError
from headrace.claims.stores.obstore_backend import CloudStore, create_once, make_client_options


def make_gcs_store(bucket: str, settings: Mapping[str, Any]) -> GcsStore:
    """Make a store.

    `settings`: service_account_path, project, endpoint (of an emulator, without credentials; `admin_endpoint` if its
    JSON API has another address).
    """
    from obstore.store import GCSStore as Client

    endpoint = str(settings.get("endpoint", ""))
    options: dict[str, Any] = {}
    if "service_account_path" in settings:
        options["service_account"] = settings["service_account_path"]
    if endpoint:
        key = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        options["service_account_key"] = json.dumps({**key, "private_key_id": ""})
    return GcsStore(bucket, Client(bucket, **options, **make_client_options(settings, endpoint)), settings)


class GcsStore(CloudStore):
    """A bucket of Google Cloud Storage; it has no tags on objects."""

    supports_tags = False

    def __init__(self, bucket: str, client: Any, settings: Mapping[str, Any]) -> None:
        super().__init__(bucket, client)
        self._settings = settings
        self._admin_client: Any = None
        if _import_storage() is not None:
            self.lifecycle = GcsLifecycle(self)

    async def ensure_bucket(self) -> None:
        if _import_storage() is None:
            await super().ensure_bucket()
        elif not await self.bucket_exists():
            await create_once(
                lambda: self.call_admin(lambda admin: admin.create_bucket(self.bucket)), self.bucket_exists
            )

    async def bucket_exists(self) -> bool:
        if _import_storage() is None:
            return await super().bucket_exists()
        return await self.call_admin(lambda admin: admin.lookup_bucket(self.bucket)) is not None

    async def delete_bucket(self) -> None:
        await self.call_admin(lambda admin: admin.get_bucket(self.bucket).delete())

    async def call_admin(self, work: Callable[[Any], Any]) -> Any:
        """Make one administrative call in a thread."""
        from google.api_core.exceptions import GoogleAPIError

        try:
            return await asyncio.to_thread(lambda: work(self._get_admin_client()))
        except (GoogleAPIError, OSError) as error:
            raise ObjectStoreError(f"bucket {self.bucket!r}: {error}") from error

    def _get_admin_client(self) -> Any:
        if self._admin_client is None:
            self._admin_client = _make_admin_client(self._settings)
        return self._admin_client


class GcsLifecycle:
    """The rules of a bucket. They have no names in GCS: a rule is ours if it covers exactly our prefix."""

    def __init__(self, store: GcsStore) -> None:
        self._store = store

    async def read(self) -> list[LifecycleRule]:
        bucket = await self._store.call_admin(lambda admin: admin.get_bucket(self._store.bucket))
        return [dict(rule) for rule in bucket.lifecycle_rules]

    async def write(self, rules: Sequence[LifecycleRule]) -> None:
        def work(admin: Any) -> None:
            bucket = admin.get_bucket(self._store.bucket)
            bucket.lifecycle_rules = list(rules)
            bucket.patch()

        await self._store.call_admin(work)

    def make_rules(self, namespace: str, days: int) -> list[LifecycleRule]:
        prefix = [f"{namespace}/"]
        return [
            {"action": {"type": "Delete"}, "condition": {"age": days, "matchesPrefix": prefix}},
            {
                "action": {"type": "AbortIncompleteMultipartUpload"},
                "condition": {"age": 1, "matchesPrefix": prefix},
            },
        ]

    def is_own_rule(self, rule: LifecycleRule, namespace: str) -> bool:
        own_actions = {"Delete", "AbortIncompleteMultipartUpload"}
        condition = rule.get("condition", {})
        return (
            rule.get("action", {}).get("type") in own_actions
            and condition.get("matchesPrefix") == [f"{namespace}/"]
            and set(condition) == {"age", "matchesPrefix"}
        )


def _make_admin_client(settings: Mapping[str, Any]) -> Any:
    storage = _import_storage()
    if "service_account_path" in settings:
        return storage.Client.from_service_account_json(settings["service_account_path"])
    if "endpoint" in settings:
        from google.auth.credentials import AnonymousCredentials

        return storage.Client(
            project=settings.get("project", "emulated"),
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": settings.get("admin_endpoint", settings["endpoint"])},
        )
    return storage.Client(project=settings.get("project"))


def _import_storage() -> Any:
    try:
        from google.cloud import storage
    except ModuleNotFoundError:
        return None
    return storage
