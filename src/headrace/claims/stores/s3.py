"""S3 and compatible stores (SeaweedFS, Ceph, R2, ...): data through obstore, administration through boto3.

boto3 is an extra and is used only for buckets, lifecycle rules and abandoned uploads; without it the bucket must exist
and has no rule of ours.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from headrace.claims.clock import SECOND_NS
from headrace.claims.stores.lifecycle import LifecycleRule
from headrace.claims.stores.object_store import (
    AccessDenied,
    BucketAlreadyExists,
    MultipartUpload,
    ObjectStoreError,
)
from headrace.claims.stores.obstore_backend import CloudStore, create_once, make_client_options

_CREDENTIAL_KEYS = ("access_key_id", "secret_access_key", "session_token")
_NO_LIFECYCLE_CODE = "NoSuchLifecycleConfiguration"
_DEFAULT_REGION = "us-east-1"
_AMAZON_DOMAIN = "amazonaws.com"


def make_s3_store(bucket: str, settings: Mapping[str, Any]) -> S3Store:
    """Make a store.

    `settings`: endpoint, region, access_key_id, secret_access_key, session_token; otherwise the environment's.
    """
    from obstore.store import S3Store as Client

    endpoint = str(settings.get("endpoint", ""))
    options: dict[str, Any] = {key: settings[key] for key in _CREDENTIAL_KEYS if key in settings}
    if endpoint:
        options |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
    options["region"] = _get_region(settings)
    return S3Store(bucket, Client(bucket, **options, **make_client_options(settings, endpoint)), settings)


class S3Store(CloudStore):
    """A bucket of S3."""

    def __init__(self, bucket: str, client: Any, settings: Mapping[str, Any]) -> None:
        super().__init__(bucket, client)
        self._settings = settings
        self._admin_client: Any = None
        self.supports_tags = bool(settings.get("tags", True))
        if _import_boto3() is not None:
            self.lifecycle = S3Lifecycle(self)

    async def ensure_bucket(self) -> None:
        if await self.bucket_exists():
            return
        if _import_boto3() is None:
            await super().ensure_bucket()
        await create_once(
            lambda: self.call_admin("create_bucket", Bucket=self.bucket, **self._bucket_configuration()),
            self.bucket_exists,
        )

    async def bucket_exists(self) -> bool:
        if _import_boto3() is None:
            return await super().bucket_exists()
        return (
            await self.call_admin("head_bucket", Bucket=self.bucket, missing=("404", "NoSuchBucket"))
            is not None
        )

    async def delete_bucket(self) -> None:
        await self.call_admin("delete_bucket", Bucket=self.bucket)

    async def uploads(self) -> Sequence[MultipartUpload]:
        if _import_boto3() is None:
            return ()
        found: list[MultipartUpload] = []
        markers: dict[str, Any] | None = {}
        while markers is not None:
            response = await self.call_admin("list_multipart_uploads", Bucket=self.bucket, **markers)
            found += [
                MultipartUpload(
                    item["Key"], item["UploadId"], round(item["Initiated"].timestamp() * SECOND_NS)
                )
                for item in response.get("Uploads", ())
            ]
            markers = _next_page_markers(response)
        return found

    async def abort(self, upload: MultipartUpload) -> None:
        await self.call_admin(
            "abort_multipart_upload",
            Bucket=self.bucket,
            Key=upload.key,
            UploadId=upload.upload_id,
            missing=("NoSuchUpload", "404"),
        )

    async def close(self) -> None:
        if self._admin_client is not None:
            await asyncio.to_thread(self._admin_client.close)

    async def call_admin(self, operation: str, missing: tuple[str, ...] = (), **arguments: Any) -> Any:
        """Make one administrative boto3 call in a thread; return None if the error code is in `missing`."""
        from botocore.exceptions import BotoCoreError, ClientError

        def work() -> Any:
            return getattr(self._get_admin_client(), operation)(**arguments)

        try:
            return await asyncio.to_thread(work)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in missing:
                return None
            raise _error_class_for(code)(f"{operation} on {self.bucket!r}: {error}") from error
        except BotoCoreError as error:
            raise ObjectStoreError(f"{operation} on {self.bucket!r}: {error}") from error

    def _bucket_configuration(self) -> dict[str, Any]:
        """Return the region parameter for a new bucket: Amazon requires it, except for its first region, where it
        rejects it; other vendors have regions of their own.
        """
        host = urlsplit(str(self._settings.get("endpoint", ""))).hostname or _AMAZON_DOMAIN
        if self._region == _DEFAULT_REGION or _AMAZON_DOMAIN not in host:
            return {}
        return {"CreateBucketConfiguration": {"LocationConstraint": self._region}}

    @property
    def _region(self) -> str:
        return _get_region(self._settings)

    def _get_admin_client(self) -> Any:
        if self._admin_client is None:
            from botocore.config import Config

            settings = self._settings
            names = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key"}
            names["session_token"] = "aws_session_token"
            known = {names[key]: settings[key] for key in _CREDENTIAL_KEYS if key in settings}
            self._admin_client = _import_boto3().client(
                "s3",
                endpoint_url=settings.get("endpoint") or None,
                region_name=self._region,
                config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 3}),
                **known,
            )
        return self._admin_client


class S3Lifecycle:
    """A bucket's lifecycle document."""

    def __init__(self, store: S3Store) -> None:
        self._store = store

    async def read(self) -> list[LifecycleRule]:
        response = await self._store.call_admin(
            "get_bucket_lifecycle_configuration", Bucket=self._store.bucket, missing=(_NO_LIFECYCLE_CODE,)
        )
        return list(response["Rules"]) if response else []

    async def write(self, rules: Sequence[LifecycleRule]) -> None:
        await self._store.call_admin(
            "put_bucket_lifecycle_configuration",
            Bucket=self._store.bucket,
            LifecycleConfiguration={"Rules": list(rules)},
        )

    def make_rules(self, namespace: str, days: int) -> list[LifecycleRule]:
        scope = {"Status": "Enabled", "Filter": {"Prefix": f"{namespace}/"}}
        expiry, uploads = _get_rule_ids(namespace)
        return [
            {"ID": expiry, **scope, "Expiration": {"Days": days}},
            {"ID": uploads, **scope, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}},
        ]

    def is_own_rule(self, rule: LifecycleRule, namespace: str) -> bool:
        return rule.get("ID") in _get_rule_ids(namespace)


def _get_region(settings: Mapping[str, Any]) -> str:
    """Return the configured region, or the environment's as the tools of AWS do."""
    names = ("AWS_REGION", "AWS_DEFAULT_REGION")
    return str(settings.get("region") or next(filter(None, map(os.environ.get, names)), _DEFAULT_REGION))


def _next_page_markers(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return where a list of uploads continues; a server returns a thousand at once."""
    if not response.get("IsTruncated"):
        return None
    return {"KeyMarker": response["NextKeyMarker"], "UploadIdMarker": response["NextUploadIdMarker"]}


def _get_rule_ids(namespace: str) -> tuple[str, str]:
    return f"headrace-claims-{namespace}", f"headrace-uploads-{namespace}"


def _error_class_for(code: str) -> Callable[[str], ObjectStoreError]:
    table: dict[str, Callable[[str], ObjectStoreError]] = {
        "AccessDenied": AccessDenied,
        "403": AccessDenied,
        "BucketAlreadyExists": BucketAlreadyExists,
    }
    return table.get(code, ObjectStoreError)


def _import_boto3() -> Any:
    try:
        import boto3
    except ModuleNotFoundError:
        return None
    return boto3
