"""Google Cloud Storage: data on obstore, buckets and lifecycle on Google's own library (an extra)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.claims.stores.base import StoreError
from headrace.claims.stores.cloud import CloudStore, client_options
from headrace.claims.stores.lifecycle import Rule


def gcs_store(bucket: str, settings: Mapping[str, Any]) -> GcsStore:
    """`settings`: service_account_path, project, endpoint (of an emulator, without credentials; `admin_endpoint` where
    its JSON API has another address).
    """
    from obstore.store import GCSStore as Client

    endpoint = str(settings.get("endpoint", ""))
    options: dict[str, Any] = {}
    if "service_account_path" in settings:
        options["service_account"] = settings["service_account_path"]
    if endpoint:
        key = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        options["service_account_key"] = json.dumps({**key, "private_key_id": ""})
    return GcsStore(bucket, Client(bucket, **options, **client_options(settings, endpoint)), settings)


class GcsStore(CloudStore):
    """A bucket of Google Cloud Storage; it has no tags on objects."""

    has_tags = False

    def __init__(self, bucket: str, client: Any, settings: Mapping[str, Any]) -> None:
        super().__init__(bucket, client)
        self._settings = settings
        self._admin_client: Any = None
        if _storage() is not None:
            self.lifecycle = GcsLifecycle(self)

    async def ensure_bucket(self) -> None:
        if _storage() is None:
            await super().ensure_bucket()
        elif not await self.bucket_exists():
            await self.call(lambda admin: admin.create_bucket(self.bucket))

    async def bucket_exists(self) -> bool:
        if _storage() is None:
            return await super().bucket_exists()
        return await self.call(lambda admin: admin.lookup_bucket(self.bucket)) is not None

    async def delete_bucket(self) -> None:
        await self.call(lambda admin: admin.get_bucket(self.bucket).delete())

    async def call(self, work: Callable[[Any], Any]) -> Any:
        """One administrative call in a thread."""
        from google.api_core.exceptions import GoogleAPIError

        try:
            return await asyncio.to_thread(lambda: work(self._admin()))
        except (GoogleAPIError, OSError) as error:
            raise StoreError(f"bucket {self.bucket!r}: {error}") from error

    def _admin(self) -> Any:
        if self._admin_client is None:
            self._admin_client = _admin_client(self._settings)
        return self._admin_client


class GcsLifecycle:
    """The rules of a bucket. They have no names here: a rule is ours if it covers exactly our prefix."""

    def __init__(self, store: GcsStore) -> None:
        self._store = store

    async def read(self) -> list[Rule]:
        bucket = await self._store.call(lambda admin: admin.get_bucket(self._store.bucket))
        return [dict(rule) for rule in bucket.lifecycle_rules]

    async def write(self, rules: Sequence[Rule]) -> None:
        def work(admin: Any) -> None:
            bucket = admin.get_bucket(self._store.bucket)
            bucket.lifecycle_rules = list(rules)
            bucket.patch()

        await self._store.call(work)

    def wanted(self, namespace: str, days: int) -> list[Rule]:
        prefix = [f"{namespace}/"]
        return [
            {"action": {"type": "Delete"}, "condition": {"age": days, "matchesPrefix": prefix}},
            {
                "action": {"type": "AbortIncompleteMultipartUpload"},
                "condition": {"age": 1, "matchesPrefix": prefix},
            },
        ]

    def is_of(self, rule: Rule, namespace: str) -> bool:
        ours = {"Delete", "AbortIncompleteMultipartUpload"}
        condition = rule.get("condition", {})
        return (
            rule.get("action", {}).get("type") in ours
            and condition.get("matchesPrefix") == [f"{namespace}/"]
            and set(condition) == {"age", "matchesPrefix"}
        )


def _admin_client(settings: Mapping[str, Any]) -> Any:
    storage = _storage()
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


def _storage() -> Any:
    try:
        from google.cloud import storage
    except ModuleNotFoundError:
        return None
    return storage
