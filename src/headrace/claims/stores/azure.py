"""Azure Blob: data through obstore, containers through Azure's library, lifecycle through its management API (an
extra).

Azure allows no `-` in metadata names, so `_` replaces it. Lifecycle policies belong to the storage account, not to the
container, and need a subscription: without `subscription_id` and `resource_group` only our sweeper removes objects.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

from headrace.claims.stores.lifecycle import LifecycleRule
from headrace.claims.stores.object_store import ObjectStoreError
from headrace.claims.stores.obstore_backend import CloudStore, create_once, make_client_options

_MANAGEMENT_KEYS = ("subscription_id", "resource_group")


def make_azure_store(bucket: str, settings: Mapping[str, Any]) -> AzureStore:
    """Make a store.

    `settings`: account, access_key, endpoint (of an emulator); otherwise credentials of the environment.
    """
    from obstore.store import AzureStore as Client

    endpoint = str(settings.get("endpoint", ""))
    options: dict[str, Any] = {"account_name": settings.get("account", "")}
    if "access_key" in settings:
        options["account_key"] = settings["access_key"]
    if endpoint:
        options["endpoint"] = endpoint
    return AzureStore(bucket, Client(bucket, **options, **make_client_options(settings, endpoint)), settings)


class AzureStore(CloudStore):
    """A container of Azure Blob Storage."""

    to_vendor = staticmethod(lambda name: name.replace("-", "_"))
    from_vendor = staticmethod(lambda name: name.replace("_", "-"))

    def __init__(self, bucket: str, client: Any, settings: Mapping[str, Any]) -> None:
        super().__init__(bucket, client)
        self._settings = settings
        if all(key in settings for key in _MANAGEMENT_KEYS):
            self.lifecycle = AzureLifecycle(make_policies_client(settings), settings, bucket)

    async def ensure_bucket(self) -> None:
        if not self._has_library():
            await super().ensure_bucket()
        elif not await self.bucket_exists():
            await create_once(
                lambda: self.call_admin(lambda container: container.create_container()), self.bucket_exists
            )

    async def bucket_exists(self) -> bool:
        if not self._has_library():
            return await super().bucket_exists()
        return bool(await self.call_admin(lambda container: container.exists()))

    async def delete_bucket(self) -> None:
        await self.call_admin(lambda container: container.delete_container())

    async def call_admin(self, work: Callable[[Any], Any]) -> Any:
        """Make one administrative call in a thread."""
        from azure.core.exceptions import AzureError

        def run() -> Any:
            with self._open_container() as container:
                return work(container)

        try:
            return await asyncio.to_thread(run)
        except AzureError as error:
            raise ObjectStoreError(f"container {self.bucket!r}: {error}") from error

    def _has_library(self) -> bool:
        try:
            import azure.storage.blob  # noqa: F401
        except ModuleNotFoundError:
            return False
        return True

    def _open_container(self) -> Any:
        from azure.storage.blob import ContainerClient

        account = self._settings.get("account", "")
        endpoint = self._settings.get("endpoint") or f"https://{account}.blob.core.windows.net"
        key = self._settings.get("access_key")
        credential = {"account_name": account, "account_key": key} if key else _make_default_credential()
        retries = int(self._settings.get("retries", 3))
        return ContainerClient(endpoint, self.bucket, credential=credential, retry_total=retries)


class AzureLifecycle:
    """The account's management policy. `policies` is `StorageManagementClient.management_policies`.

    Documents are passed as in Azure's REST API: the library's own classes differ between versions.
    """

    def __init__(self, policies: Any, settings: Mapping[str, Any], container: str) -> None:
        self._policies = policies
        self._policy_path = (settings["resource_group"], settings["account"], "default")
        self._container_name = container

    async def read(self) -> list[LifecycleRule]:
        from azure.core.exceptions import ResourceNotFoundError

        def work() -> list[LifecycleRule]:
            try:
                document = self._policies.get(*self._policy_path, cls=_get_raw_response)
            except ResourceNotFoundError:
                return []
            return list(document["properties"]["policy"]["rules"])

        rules: list[LifecycleRule] = await self._call_management(work)
        return rules

    async def write(self, rules: Sequence[LifecycleRule]) -> None:
        document = json.dumps({"properties": {"policy": {"rules": list(rules)}}}).encode()
        await self._call_management(
            lambda: self._policies.create_or_update(*self._policy_path, BytesIO(document))
        )

    async def _call_management(self, work: Callable[[], Any]) -> Any:
        from azure.core.exceptions import AzureError

        try:
            return await asyncio.to_thread(work)
        except AzureError as error:
            raise ObjectStoreError(
                f"lifecycle policy of account {self._policy_path[1]!r}: {error}"
            ) from error

    def make_rules(self, namespace: str, days: int) -> list[LifecycleRule]:
        filters = {"blobTypes": ["blockBlob"], "prefixMatch": [f"{self._container_name}/{namespace}/"]}
        actions = {"baseBlob": {"delete": {"daysAfterModificationGreaterThan": days}}}
        definition = {"actions": actions, "filters": filters}
        return [
            {
                "name": _make_rule_name(namespace),
                "enabled": True,
                "type": "Lifecycle",
                "definition": definition,
            },
        ]

    def is_own_rule(self, rule: LifecycleRule, namespace: str) -> bool:
        return rule.get("name") == _make_rule_name(namespace)


def make_policies_client(settings: Mapping[str, Any]) -> Any:
    from azure.mgmt.storage import StorageManagementClient

    return StorageManagementClient(
        _make_default_credential(), settings["subscription_id"]
    ).management_policies


def _make_default_credential() -> Any:
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


def _get_raw_response(response: Any, *_: Any) -> Any:
    """Return the service's response as it is."""
    return json.loads(response.http_response.text())


def _make_rule_name(namespace: str) -> str:
    """Make a rule name: only letters and digits are allowed, so other characters become part of a digest that keeps
    names unique.
    """
    plain = "".join(character for character in namespace if character.isalnum())
    digest = hashlib.sha256(namespace.encode()).hexdigest()[:8] if plain != namespace else ""
    return f"headraceClaims{plain}{digest}"
