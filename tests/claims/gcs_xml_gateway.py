"""A gateway with Google Cloud Storage's XML API in front of an emulator that has only the JSON API.

obstore uses XML with Google; emulators from public registries have JSON. The gateway translates requests into calls
of Google's own library on the emulator, which keeps the objects, their metadata and generations. It follows Google's
documentation of the XML API. A mistake in it is a mistake in the tests too; docs/reference/claims.md mentions this.
"""

from __future__ import annotations

import itertools
import sys
import threading
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from google.api_core.exceptions import NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

_META = "x-goog-meta-"
_MATCH = "x-goog-if-generation-match"


class Door(ThreadingHTTPServer):
    """Listens on a free loopback port; `emulator` is the address of the JSON API."""

    daemon_threads = True

    def __init__(self, emulator: str, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Request)
        self.client = storage.Client(
            project="emulated",
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": emulator},
        )
        self.numbers = itertools.count(1)
        #: Multipart uploads in progress: id -> (headers, part number -> bytes).
        self.parts: dict[str, tuple[dict[str, str], dict[int, bytes]]] = {}
        #: The emulator checks a generation and stores in two steps; this lock makes them one.
        self.storing = threading.Lock()


class Request(BaseHTTPRequestHandler):
    """One request from obstore."""

    protocol_version = "HTTP/1.1"
    server: Door

    def do_PUT(self) -> None:
        bucket, key, query = self._target()
        body = self._body()
        if "partNumber" in query:
            self.server.parts[query["uploadId"][0]][1][int(query["partNumber"][0])] = body
            return self._answer(200, headers={"ETag": f'"{len(body)}"'})
        self._store(bucket, key, body, dict(self.headers.items()))

    def do_POST(self) -> None:
        bucket, key, query = self._target()
        self._body()
        if "uploads" in query:
            upload = f"u{next(self.server.numbers)}"
            self.server.parts[upload] = ({name.lower(): text for name, text in self.headers.items()}, {})
            text = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            return self._xml("InitiateMultipartUploadResult", text)
        headers, parts = self.server.parts.pop(query["uploadId"][0])
        self._store(
            bucket, key, b"".join(parts[number] for number in sorted(parts)), headers, is_multipart=True
        )

    def do_GET(self) -> None:
        bucket, key, query = self._target()
        return self._fetch(bucket, key, True) if key else self._list(bucket, query)

    def do_HEAD(self) -> None:
        bucket, key, _ = self._target()
        self._fetch(bucket, key, False)

    def do_DELETE(self) -> None:
        bucket, key, query = self._target()
        if "uploadId" in query:
            self.server.parts.pop(query["uploadId"][0], None)
            return self._answer(204)
        try:
            self.server.client.bucket(bucket).blob(key).delete()
            self._answer(204)
        except NotFound:
            self._missing()

    def _store(
        self, bucket: str, key: str, body: bytes, headers: dict[str, str], *, is_multipart: bool = False
    ) -> None:
        headers = {name.lower(): text for name, text in headers.items()}
        blob = self.server.client.bucket(bucket).blob(key)
        blob.metadata = {
            name.removeprefix(_META): text for name, text in headers.items() if name.startswith(_META)
        }
        content_type = headers.get("content-type", "application/octet-stream")
        with self.server.storing:
            try:
                if headers.get(_MATCH) not in (None, self._read_generation(bucket, key)):
                    raise PreconditionFailed("it is there")  # type: ignore[no-untyped-call]
                blob.upload_from_string(body, content_type=content_type)
            except PreconditionFailed:
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            except NotFound:
                return self._missing("NoSuchBucket")
        if is_multipart:
            return self._xml("CompleteMultipartUploadResult", f"<ETag>{escape(blob.etag or 'e')}</ETag>")
        self._answer(200, headers=self._facts(blob))

    def _read_generation(self, bucket: str, key: str) -> str:
        found = self.server.client.bucket(bucket).get_blob(key)
        return "0" if found is None else str(found.generation or 1)

    def _fetch(self, bucket: str, key: str, with_body: bool) -> None:
        blob = self.server.client.bucket(bucket).get_blob(key)
        if blob is None:
            return self._missing()
        headers = self._facts(blob) | {f"{_META}{name}": text for name, text in (blob.metadata or {}).items()}
        if not with_body:
            return self._answer(200, headers=headers, length=blob.size)
        self._answer(200, blob.download_as_bytes(checksum=None), headers)

    @staticmethod
    def _facts(blob: Any) -> dict[str, str]:
        facts = {
            "ETag": f'"{blob.etag or blob.md5_hash or "e"}"',
            "x-goog-generation": str(blob.generation or 1),
        }
        if blob.updated is not None:
            facts["Last-Modified"] = format_datetime(blob.updated, usegmt=True)
        return facts

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [None])[0]
        after = query.get("start-after", [""])[0]
        try:
            found = self.server.client.list_blobs(bucket, prefix=prefix, delimiter=delimiter)
            blobs = [blob for blob in found if blob.name > after]
        except NotFound:
            return self._missing("NoSuchBucket")
        contents = "".join(
            f"<Contents><Key>{escape(blob.name)}</Key><LastModified>{blob.updated:%Y-%m-%dT%H:%M:%S.%f}Z"
            f"</LastModified><ETag>e</ETag><Size>{blob.size}</Size></Contents>"
            for blob in sorted(blobs, key=lambda item: str(item.name))
        )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in sorted(found.prefixes)
        )
        self._xml("ListBucketResult", f"<IsTruncated>false</IsTruncated>{contents}{common}")

    def _target(self) -> tuple[str, str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        bucket, _, key = parts.path.lstrip("/").partition("/")
        return bucket, unquote(key), parse_qs(parts.query, keep_blank_values=True)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _missing(self, code: str = "NoSuchKey") -> None:
        self._answer(404, f"<Error><Code>{code}</Code></Error>".encode())

    def _xml(self, name: str, text: str) -> None:
        self._answer(200, f"<?xml version='1.0' encoding='UTF-8'?><{name}>{text}</{name}>".encode())

    def _answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        if status != 204:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


if __name__ == "__main__":
    Door(sys.argv[1], int(sys.argv[2])).serve_forever()
