"""S3, by its own calls through s3fs: large objects in parts that survive the death of whoever sends them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from itertools import chain
from typing import Any

from slurmtrain.errors import RemoteBusyError, RemoteError, SlurmtrainError
from slurmtrain.remote.faults import explain, find_code
from slurmtrain.remote.model import Body, Written
from slurmtrain.remote.pace import Pace

_GONE = frozenset({"NoSuchKey", "404", "NoSuchUpload"})
_CONNECT_S, _READ_S = 15, 120


def client_options(endpoint: str | None, profile: str | None) -> dict[str, Any]:
    """For ``S3FileSystem``: nothing is tried twice behind our back, and old servers are not sent new checksums."""
    config = {
        "connect_timeout": _CONNECT_S,
        "read_timeout": _READ_S,
        "retries": {"total_max_attempts": 1},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    options: dict[str, Any] = {"config_kwargs": config, "use_listings_cache": False, "skip_instance_cache": True}
    return options | ({"endpoint_url": endpoint} if endpoint else {}) | ({"profile": profile} if profile else {})


class S3Remote:
    """A prefix in a bucket."""

    def __init__(self, filesystem: Any, url: str, pace: Pace) -> None:
        self.url = url
        self._fs = filesystem
        self._fs.retries = 1  # waiting is ours, see Pace
        self._pace = pace
        self._bucket, _, root = url.partition("://")[2].partition("/")
        self._root = f"{root.strip('/')}/" if root.strip("/") else ""

    def find(self, prefix: str) -> dict[str, int]:
        pages = self._pages(Prefix=f"{self._root}{prefix}/" if prefix else self._root)
        cut = len(self._root)
        return {entry["Key"][cut:]: int(entry["Size"]) for page in pages for entry in page.get("Contents", ())}

    def folders(self) -> list[str]:
        pages = self._pages(Prefix=self._root, Delimiter="/")
        found = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ())]
        return [name[len(self._root) :].rstrip("/") for name in found]

    def _pages(self, **words: str) -> Iterator[dict[str, Any]]:
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", **words, **token)
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def read(self, key: str, limit: int = 64 << 20) -> bytes | None:
        try:
            data = self._fs.cat_file(f"{self._bucket}/{self._root}{key}", start=0, end=limit)
        except Exception as exc:
            if find_code(exc) in _GONE or (isinstance(exc, FileNotFoundError) and find_code(exc) != "NoSuchBucket"):
                return None
            raise explain(exc, self.url) from exc
        return bytes(data)

    def write(self, key: str, body: Body) -> Written | None:
        chunks = body.chunks()
        first = next(chunks, b"")
        second = next(chunks, None)
        if second is not None:
            return self._write_parts(key, chain((first, second), chunks), body)
        if not body.is_same():
            return None
        self._pace.take(len(first))
        self._call("put_object", Key=self._root + key, Body=first, ContentMD5=_md5(first), **_kind(body))
        return Written(len(first), hashlib.sha256(first).hexdigest())

    def delete(self, key: str) -> None:
        self._call("delete_object", Key=self._root + key)

    def sweep(self, prefix: str) -> int:
        try:
            stale = self._uploads(f"{self._root}{prefix}/")
        except RemoteBusyError:
            raise
        except RemoteError:  # whoever may put objects may not always list uploads
            return 0
        for upload in stale:
            self._abort(upload["Key"], upload["UploadId"])
        return len(stale)

    def _write_parts(self, key: str, chunks: Iterator[bytes], body: Body) -> Written | None:
        """Go on with the upload that an earlier process of ours began: parts that are there are not sent again."""
        name = self._root + key
        upload = self._find_upload(name) or self._call("create_multipart_upload", Key=name, **_kind(body))["UploadId"]
        try:
            parts, written = self._send_parts(name, upload, chunks)
        except SlurmtrainError as exc:
            if not isinstance(exc, RemoteError):  # the source is gone
                self._abort(name, upload)
            raise
        if not body.is_same():
            self._abort(name, upload)
            return None
        self._call("complete_multipart_upload", Key=name, UploadId=upload, MultipartUpload={"Parts": parts})
        return written

    def _send_parts(self, name: str, upload: str, chunks: Iterator[bytes]) -> tuple[list[dict[str, Any]], Written]:
        there = self._parts(name, upload)
        sent: list[dict[str, Any]] = []
        digest, size = hashlib.sha256(), 0
        for number, chunk in enumerate(chunks, 1):
            etag = hashlib.md5(chunk, usedforsecurity=False).hexdigest()
            if there.get(number) != (etag, len(chunk)):
                etag = self._send_part(name, upload, number, chunk)
            sent.append({"PartNumber": number, "ETag": etag})
            digest.update(chunk)
            size += len(chunk)
        return sent, Written(size, digest.hexdigest())

    def _send_part(self, name: str, upload: str, number: int, chunk: bytes) -> str:
        def send() -> str:
            self._pace.take(len(chunk))
            numbers: dict[str, Any] = {"UploadId": upload, "PartNumber": number}
            answer = self._try("upload_part", Key=name, Body=chunk, ContentMD5=_md5(chunk), **numbers)
            return str(answer["ETag"])

        return self._pace.patiently(send)

    def _find_upload(self, name: str) -> str | None:
        own = [upload for upload in self._uploads(name) if upload["Key"] == name]
        return str(max(own, key=lambda upload: upload["Initiated"])["UploadId"]) if own else None

    def _uploads(self, prefix: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        marks: dict[str, str] = {}
        while True:
            page = self._call("list_multipart_uploads", Prefix=prefix, **marks)
            found += page.get("Uploads", ())
            if not page.get("IsTruncated"):
                return found
            marks = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _parts(self, name: str, upload: str) -> dict[int, tuple[str, int]]:
        found: dict[int, tuple[str, int]] = {}
        mark: dict[str, int] = {}
        while True:
            page = self._call("list_parts", Key=name, UploadId=upload, **mark)
            for part in page.get("Parts", ()):
                found[int(part["PartNumber"])] = (str(part["ETag"]).strip('"'), int(part["Size"]))
            if not page.get("IsTruncated"):
                return found
            mark = {"PartNumberMarker": int(page["NextPartNumberMarker"])}

    def _abort(self, name: str, upload: str) -> None:
        self._call("abort_multipart_upload", Key=name, UploadId=upload)

    def _call(self, method: str, **words: Any) -> Any:
        return self._pace.patiently(lambda: self._try(method, **words))

    def _try(self, method: str, **words: Any) -> Any:
        try:
            return self._fs.call_s3(method, Bucket=self._bucket, **words)
        except Exception as exc:
            if method == "abort_multipart_upload" and find_code(exc) in _GONE:
                return {}
            raise explain(exc, self.url) from exc


def _md5(data: bytes) -> str:
    """For the server to compare: what was damaged on its way is refused."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _kind(body: Body) -> dict[str, str]:
    return {"ContentType": "text/plain; charset=utf-8" if body.is_text else "application/octet-stream"}
