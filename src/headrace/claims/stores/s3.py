"""S3 and everything that speaks it (SeaweedFS, Ceph, R2, ...): data on obstore, administration on boto3.

boto3 is an extra and is used for buckets, lifecycle rules and abandoned uploads only; without it the bucket must
exist and has no rule of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from headrace.claims.clock import SECOND_NS
from headrace.claims.stores.base import BucketThere, Denied, StoreError, Upload
from headrace.claims.stores.cloud import CloudStore, client_options
from headrace.claims.stores.lifecycle import Rule

_KEYS = ("access_key_id", "secret_access_key", "session_token")
_NO_RULES = "NoSuchLifecycleConfiguration"
_FIRST_REGION = "us-east-1"
_AMAZON = "amazonaws.com"


def s3_store(bucket: str, settings: Mapping[str, Any]) -> S3Store:
    """`settings`: endpoint, region, access_key_id, secret_access_key, session_token; the environment's otherwise."""
    from obstore.store import S3Store as Client

    endpoint = str(settings.get("endpoint", ""))
    options: dict[str, Any] = {key: settings[key] for key in _KEYS if key in settings}
    if endpoint:
        options |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
    options["region"] = settings.get("region", _FIRST_REGION)
    return S3Store(bucket, Client(bucket, **options, **client_options(settings, endpoint)), settings)


class S3Store(CloudStore):
    """A bucket of S3."""

    def __init__(self, bucket: str, client: Any, settings: Mapping[str, Any]) -> None:
        super().__init__(bucket, client)
        self._settings = settings
        self._admin_client: Any = None
        self.has_tags = bool(settings.get("tags", True))
        if _boto3() is not None:
            self.lifecycle = S3Lifecycle(self)

    async def ensure_bucket(self) -> None:
        if await self.bucket_exists():
            return
        if _boto3() is None:
            await super().ensure_bucket()
        await self.call("create_bucket", Bucket=self.bucket, **self._location())

    async def bucket_exists(self) -> bool:
        if _boto3() is None:
            return await super().bucket_exists()
        return await self.call("head_bucket", Bucket=self.bucket, missing=("404", "NoSuchBucket")) is not None

    async def delete_bucket(self) -> None:
        await self.call("delete_bucket", Bucket=self.bucket)

    async def uploads(self) -> Sequence[Upload]:
        if _boto3() is None:
            return ()
        found: list[Upload] = []
        markers: dict[str, Any] | None = {}
        while markers is not None:
            answer = await self.call("list_multipart_uploads", Bucket=self.bucket, **markers)
            found += [
                Upload(item["Key"], item["UploadId"], round(item["Initiated"].timestamp() * SECOND_NS))
                for item in answer.get("Uploads", ())
            ]
            markers = _following(answer)
        return found

    async def abort(self, upload: Upload) -> None:
        await self.call(
            "abort_multipart_upload",
            Bucket=self.bucket,
            Key=upload.key,
            UploadId=upload.upload_id,
            missing=("NoSuchUpload", "404"),
        )

    async def close(self) -> None:
        if self._admin_client is not None:
            await asyncio.to_thread(self._admin_client.close)

    async def call(self, operation: str, missing: tuple[str, ...] = (), **arguments: Any) -> Any:
        """One administrative call of boto3 in a thread; None when it answers with a code of `missing`."""
        from botocore.exceptions import BotoCoreError, ClientError

        def work() -> Any:
            return getattr(self._admin(), operation)(**arguments)

        try:
            return await asyncio.to_thread(work)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in missing:
                return None
            raise _error_of(code)(f"{operation} on {self.bucket!r}: {error}") from error
        except BotoCoreError as error:
            raise StoreError(f"{operation} on {self.bucket!r}: {error}") from error

    def _location(self) -> dict[str, Any]:
        """What Amazon wants to hear of a bucket's region, and refuses to hear of its first one; others have regions of
        their own kind.
        """
        host = urlsplit(str(self._settings.get("endpoint", ""))).hostname or _AMAZON
        if self._region == _FIRST_REGION or _AMAZON not in host:
            return {}
        return {"CreateBucketConfiguration": {"LocationConstraint": self._region}}

    @property
    def _region(self) -> str:
        return str(self._settings.get("region", _FIRST_REGION))

    def _admin(self) -> Any:
        if self._admin_client is None:
            from botocore.config import Config

            settings = self._settings
            names = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key"}
            names["session_token"] = "aws_session_token"
            known = {names[key]: settings[key] for key in _KEYS if key in settings}
            self._admin_client = _boto3().client(
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

    async def read(self) -> list[Rule]:
        answer = await self._store.call(
            "get_bucket_lifecycle_configuration", Bucket=self._store.bucket, missing=(_NO_RULES,)
        )
        return list(answer["Rules"]) if answer else []

    async def write(self, rules: Sequence[Rule]) -> None:
        await self._store.call(
            "put_bucket_lifecycle_configuration",
            Bucket=self._store.bucket,
            LifecycleConfiguration={"Rules": list(rules)},
        )

    def wanted(self, namespace: str, days: int) -> list[Rule]:
        scope = {"Status": "Enabled", "Filter": {"Prefix": f"{namespace}/"}}
        expiry, uploads = _ids(namespace)
        return [
            {"ID": expiry, **scope, "Expiration": {"Days": days}},
            {"ID": uploads, **scope, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}},
        ]

    def is_of(self, rule: Rule, namespace: str) -> bool:
        return rule.get("ID") in _ids(namespace)


def _following(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where a list of uploads goes on; a server tells a thousand at once."""
    if not answer.get("IsTruncated"):
        return None
    return {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}


def _ids(namespace: str) -> tuple[str, str]:
    return f"headrace-claims-{namespace}", f"headrace-uploads-{namespace}"


def _error_of(code: str) -> Callable[[str], StoreError]:
    table: dict[str, Callable[[str], StoreError]] = {
        "AccessDenied": Denied,
        "403": Denied,
        "BucketAlreadyExists": BucketThere,
    }
    return table.get(code, StoreError)


def _boto3() -> Any:
    try:
        import boto3
    except ModuleNotFoundError:
        return None
    return boto3
