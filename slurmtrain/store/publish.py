"""Writing files that others read over NFS or Lustre: all or nothing, and once where once matters.

``link(2)`` is the only create-exclusively that is atomic with its content on every network file system. Where hard
links are refused, a directory that already holds the file is renamed into place: renaming onto a directory that is not
empty fails, so the first one wins there too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from slurmtrain.errors import StoreError
from slurmtrain.hosts.files import open_file

_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY}
_CONTENT = "content"
_MAX_BYTES = 256 << 20  # nothing that is published comes near it


def publish_once(path: Path, data: bytes) -> bool:
    """Create ``path`` with ``data`` unless it exists; True if this call made it. Raises ``StoreError``.

    A link that is reported as failed although it was made (an NFS retransmission) counts as made: the temporary
    file then has two names.
    """
    temporary = _temporary_beside(path)
    try:
        if read_published(path) is not None:
            return False
        _write_synced(temporary, data)
        return _link_or_rename(temporary, path, data)
    except OSError as exc:
        raise StoreError(f"cannot write {path}: {exc.strerror or exc}") from exc
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _link_or_rename(temporary: Path, path: Path, data: bytes) -> bool:
    try:
        os.link(temporary, path)
    except OSError as exc:
        if temporary.stat().st_nlink == 2:
            return True
        if exc.errno in _TAKEN:
            return False
        if exc.errno in _NO_HARD_LINKS:
            return _rename_directory(path, data)
        raise
    return True


def _rename_directory(path: Path, data: bytes) -> bool:
    staged = _temporary_beside(path)
    staged.mkdir()
    try:
        _write_synced(staged / _CONTENT, data)
        return publish_directory(staged, _directory_form(path))
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def publish_directory(staged: Path, path: Path) -> bool:
    """Rename a directory that is not empty to ``path`` unless one lies there; True if it lies there by this call.

    A rename that is reported as failed although it was made (an NFS retransmission) counts as made: only it takes
    ``staged`` away. Raises ``OSError``.
    """
    try:
        staged.rename(path)
    except OSError as exc:
        if _is_gone(staged):
            return True
        if exc.errno in _TAKEN:
            return False
        raise
    return True


def _is_gone(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    return False


def read_published(path: Path) -> bytes | None:
    """What was published as ``path``, or None. Opening the file revalidates an NFS client's cache."""
    for candidate in (path, _directory_form(path) / _CONTENT):
        try:
            return _read(candidate)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as exc:
            if exc.errno == errno.ESTALE:  # replaced on the server while we opened it: look once more
                with contextlib.suppress(OSError):
                    return _read(candidate)
            raise StoreError(f"cannot read {candidate}: {exc.strerror or exc}") from exc
    return None


def _read(path: Path) -> bytes:
    with open_file(path) as stream:
        if os.fstat(stream.fileno()).st_size > _MAX_BYTES:
            raise OSError(errno.EFBIG, "it is larger than anything that slurmtrain writes", str(path))
        return stream.read()


def set_damaged_aside(path: Path) -> None:
    """Take a published JSON object that is none (a torn file) out of the way; it is kept. Never raises."""
    with contextlib.suppress(OSError, StoreError):
        if read_published(path) is not None and read_json(path) is None:
            path.rename(path.with_name(f"{path.name}.damaged-{secrets.token_hex(3)}"))


def exists(path: Path) -> bool:
    """Whether something lies there; a server that does not answer or a stale handle counts as no. Never raises."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def read_json(path: Path) -> dict[str, Any] | None:
    """A published JSON object, or None where there is none (or where it is not one: a torn or foreign file)."""
    data = read_published(path)
    if data is None:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def replace(path: Path, data: bytes) -> None:
    """Write ``path`` so that a reader sees the old or the new content, never a part. Raises ``StoreError``."""
    temporary = _temporary_beside(path)
    try:
        _write_synced(temporary, data)
        _replace(temporary, path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(f"cannot write {path}: {exc.strerror or exc}") from exc


def _replace(temporary: Path, path: Path) -> None:
    try:
        temporary.replace(path)
    except FileNotFoundError:
        if not _is_gone(temporary) or not exists(path):
            raise


def to_json(value: Any) -> bytes:
    """One JSON document, readable by a person, with a final newline."""
    return (json.dumps(value, indent=1, ensure_ascii=False, sort_keys=False) + "\n").encode("utf-8", "replace")


def _temporary_beside(path: Path) -> Path:
    return path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"


def _directory_form(path: Path) -> Path:
    return path.parent / (path.name + ".d")


def _write_synced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
