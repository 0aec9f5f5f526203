"""Azure Blob: data on obstore, containers on Azure's library, lifecycle on its management plane (an extra).

Azure allows no `-` in names of metadata, so it is `_` there. Lifecycle policies belong to the storage account, not to
the container, and need a subscription: without `subscription_id` and `resource_group` our sweeper does it alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

from headrace.claims.stores.base import StoreError
from headrace.claims.stores.cloud import CloudStore, client_options
from headrace.claims.stores.lifecycle import Rule

_MANAGEMENT = ("subscription_id", "resource_group")


def azure_store(bucket: str, settings: Mapping[str, Any]) -> AzureStore:
    """`settings`: account, access_key, endpoint (of an emulator); the environment's credentials otherwise."""
    from obstore.store import AzureStore as Client

    endpoint = str(settings.get("endpoint", ""))
    options: dict[str, Any] = {"account_name": settings.get("account", "")}
    if "access_key" in settings:
        options["account_key"] = settings["access_key"]
    if endpoint:
        options["endpoint"] = endpoint
    return AzureStore(bucket, Client(bucket, **options, **client_options(settings, endpoint)), settings)


class AzureStore(CloudStore):
    """A container of Azure Blob Storage."""

    to_vendor = staticmethod(lambda name: name.replace("-", "_"))
    from_vendor = staticmethod(lambda name: name.replace("_", "-"))

    def __init__(self, bucket: str, client: Any, settings: Mapping[str, Any]) -> None:
        super().__init__(bucket, client)
        self._settings = settings
        if all(key in settings for key in _MANAGEMENT):
            self.lifecycle = AzureLifecycle(policies_of(settings), settings, bucket)

    async def ensure_bucket(self) -> None:
        if not self._has_library():
            await super().ensure_bucket()
        elif not await self.bucket_exists():
            await self.call(lambda container: container.create_container())

    async def bucket_exists(self) -> bool:
        if not self._has_library():
            return await super().bucket_exists()
        return bool(await self.call(lambda container: container.exists()))

    async def delete_bucket(self) -> None:
        await self.call(lambda container: container.delete_container())

    async def call(self, work: Callable[[Any], Any]) -> Any:
        """One administrative call in a thread."""
        from azure.core.exceptions import AzureError

        def run() -> Any:
            with self._container() as container:
                return work(container)

        try:
            return await asyncio.to_thread(run)
        except AzureError as error:
            raise StoreError(f"container {self.bucket!r}: {error}") from error

    def _has_library(self) -> bool:
        try:
            import azure.storage.blob  # noqa: F401
        except ModuleNotFoundError:
            return False
        return True

    def _container(self) -> Any:
        from azure.storage.blob import ContainerClient

        account = self._settings.get("account", "")
        endpoint = self._settings.get("endpoint") or f"https://{account}.blob.core.windows.net"
        key = self._settings.get("access_key")
        credential = {"account_name": account, "account_key": key} if key else _default_credential()
        retries = int(self._settings.get("retries", 3))
        return ContainerClient(endpoint, self.bucket, credential=credential, retry_total=retries)


class AzureLifecycle:
    """The account's management policy. `policies` is `StorageManagementClient.management_policies`.

    Documents go and come as Azure's API has them: the library's own classes differ from version to version.
    """

    def __init__(self, policies: Any, settings: Mapping[str, Any], container: str) -> None:
        self._policies = policies
        self._where = (settings["resource_group"], settings["account"], "default")
        self._container = container

    async def read(self) -> list[Rule]:
        from azure.core.exceptions import ResourceNotFoundError

        def work() -> list[Rule]:
            try:
                document = self._policies.get(*self._where, cls=_as_sent)
            except ResourceNotFoundError:
                return []
            return list(document["properties"]["policy"]["rules"])

        rules: list[Rule] = await self._told(work)
        return rules

    async def write(self, rules: Sequence[Rule]) -> None:
        document = json.dumps({"properties": {"policy": {"rules": list(rules)}}}).encode()
        await self._told(lambda: self._policies.create_or_update(*self._where, BytesIO(document)))

    async def _told(self, work: Callable[[], Any]) -> Any:
        from azure.core.exceptions import AzureError

        try:
            return await asyncio.to_thread(work)
        except AzureError as error:
            raise StoreError(f"lifecycle policy of account {self._where[1]!r}: {error}") from error

    def wanted(self, namespace: str, days: int) -> list[Rule]:
        filters = {"blobTypes": ["blockBlob"], "prefixMatch": [f"{self._container}/{namespace}/"]}
        actions = {"baseBlob": {"delete": {"daysAfterModificationGreaterThan": days}}}
        definition = {"actions": actions, "filters": filters}
        return [
            {"name": _name(namespace), "enabled": True, "type": "Lifecycle", "definition": definition},
        ]

    def is_of(self, rule: Rule, namespace: str) -> bool:
        return rule.get("name") == _name(namespace)


def policies_of(settings: Mapping[str, Any]) -> Any:
    from azure.mgmt.storage import StorageManagementClient

    return StorageManagementClient(_default_credential(), settings["subscription_id"]).management_policies


def _default_credential() -> Any:
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


def _as_sent(response: Any, *_: Any) -> Any:
    """What the service answered, as it is."""
    return json.loads(response.http_response.text())


def _name(namespace: str) -> str:
    """Only letters and digits are allowed; what else a namespace has shows in a digest, so that no two are the same."""
    plain = "".join(character for character in namespace if character.isalnum())
    digest = hashlib.sha256(namespace.encode()).hexdigest()[:8] if plain != namespace else ""
    return f"headraceClaims{plain}{digest}"
