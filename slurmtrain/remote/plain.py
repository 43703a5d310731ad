"""Any other storage of fsspec's: folders on a file system or behind SSH, other object stores."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from slurmtrain.errors import SlurmtrainError
from slurmtrain.remote.faults import explain
from slurmtrain.remote.model import Body, Written
from slurmtrain.remote.pace import Pace, StoppedError

_T = TypeVar("_T")
_TEMPORARY = ".slurmtrain-part"
# Their objects appear when the file is closed, so nothing has to be renamed, which would copy them once more.
_WHOLE_BY_THEMSELVES = frozenset({"gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "s3", "s3a", "oci", "ocilake"})


class PlainRemote:
    """A folder. A file gets its name when it is whole."""

    def __init__(self, filesystem: Any, url: str, root: str, pace: Pace) -> None:
        self.url = url
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._pace = pace
        self._renames = url.partition("://")[0] not in _WHOLE_BY_THEMSELVES
        self._folders: set[str] = set()

    def find(self, prefix: str) -> dict[str, int]:
        return {key: size for key, size in self._find(prefix).items() if not key.endswith(_TEMPORARY)}

    def folders(self) -> list[str]:
        def look() -> list[str]:
            self._fs.invalidate_cache()
            try:
                listed = self._fs.ls(self._root, detail=True)
            except FileNotFoundError:
                return []
            return [
                str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in listed if entry["type"] == "directory"
            ]

        return list(self._patiently(look))

    def read(self, key: str, limit: int = 64 << 20) -> bytes | None:
        try:
            with self._fs.open(f"{self._root}/{key}", "rb") as stream:
                return bytes(stream.read(limit))
        except FileNotFoundError:
            return None
        except Exception as exc:
            raise explain(exc, self.url) from exc

    def write(self, key: str, body: Body) -> Written | None:
        return self._pace.patiently(lambda: self._write(key, body))

    def delete(self, key: str) -> None:
        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._root}/{key}")

        self._patiently(remove)

    def sweep(self, prefix: str) -> int:
        stale = [key for key in self._find(prefix) if key.endswith(_TEMPORARY)]
        for key in stale:
            self.delete(key)
        return len(stale)

    def _find(self, prefix: str) -> dict[str, int]:
        start = f"{self._root}/{prefix}" if prefix else self._root

        def look() -> dict[str, int]:
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(start, detail=True)
            except FileNotFoundError:
                return {}
            return {path[len(self._root) + 1 :]: int(entry["size"] or 0) for path, entry in found.items()}

        return self._patiently(look)

    def _write(self, key: str, body: Body) -> Written | None:
        name = f"{self._root}/{key}"
        temporary = name + _TEMPORARY if self._renames else name
        digest, size = hashlib.sha256(), 0
        try:
            self._make_folder(name.rpartition("/")[0])
            with self._fs.open(temporary, "wb") as stream:
                for chunk in body.chunks():
                    self._pace.take(len(chunk))
                    stream.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
            if not body.is_same():
                self._forget(temporary)
                return None
            if self._renames:
                self._fs.mv(temporary, name)
        except (SlurmtrainError, StoppedError):  # of the source, or of whoever asked to leave
            self._forget(temporary)
            raise
        except Exception as exc:
            raise explain(exc, self.url) from exc
        return Written(size, digest.hexdigest())

    def _forget(self, temporary: str) -> None:
        if self._renames:
            with contextlib.suppress(Exception):  # the next sweep finds it
                self._fs.rm_file(temporary)

    def _make_folder(self, folder: str) -> None:
        if self._renames and folder not in self._folders:
            self._fs.makedirs(folder, exist_ok=True)
            self._folders.add(folder)

    def _patiently(self, act: Callable[[], _T]) -> _T:
        def attempt() -> _T:
            try:
                return act()
            except Exception as exc:
                raise explain(exc, self.url) from exc

        return self._pace.patiently(attempt)
