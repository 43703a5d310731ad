"""What takes long to make and can be made again, kept in the user's own cache directory.

A cache saves time and nothing else: what is damaged, foreign or cannot be written is as if it were not there. The key
is of everything that the content is made from, and the digest in front of the content covers both, so neither a torn
file nor one under another's name is ever believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from slurmtrain.errors import StoreError
from slurmtrain.hosts.files import open_file
from slurmtrain.resources import why_untrusted
from slurmtrain.store.publish import replace

_KEPT = 8  # of each kind: several versions and environments of one user
_MAX_BYTES = 64 << 20
_DIGEST = hashlib.sha256().digest_size
_ABANDONED_S = 3600.0  # a temporary file of somebody who was killed


def user_cache_dir(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME/slurmtrain`` or ``~/.cache/slurmtrain``; None where there is no home."""
    base, home = environ.get("XDG_CACHE_HOME") or "", environ.get("HOME") or ""
    if base.startswith("/"):
        return Path(base) / "slurmtrain"
    return Path(home) / ".cache" / "slurmtrain" if home.startswith("/") else None


def remember(folder: Path | None, kind: str, key: bytes, make: Callable[[], tuple[bytes, bool]]) -> bytes:
    """What was made for ``key``, else what ``make`` makes now; it also says whether that may be kept.

    Raises only what ``make`` raises.
    """
    path = folder / f"{kind}-{key.hex()}" if folder is not None else None
    found = _read(path, key) if path is not None else None
    if found is not None:
        return found
    data, lasting = make()
    if path is not None and lasting:
        with contextlib.suppress(OSError, StoreError):
            _keep(path, kind, _digest(key, data) + data)
    return data


def _digest(key: bytes, data: bytes) -> bytes:
    return hashlib.sha256(key + data).digest()


def _read(path: Path, key: bytes) -> bytes | None:
    if why_untrusted(path) is not None:  # also where there is none
        return None
    try:
        with open_file(path, follow=False) as stream:
            whole = stream.read(_MAX_BYTES + 1)
    except OSError:
        return None
    digest, data = whole[:_DIGEST], whole[_DIGEST:]
    return data if len(whole) <= _MAX_BYTES and digest == _digest(key, data) else None


def _keep(path: Path, kind: str, content: bytes) -> None:
    """Nothing is written into a home of somebody else (root under sudo), nor where others may write."""
    folder = path.parent
    home = next(above for above in folder.parents if above.exists())
    if len(content) > _MAX_BYTES or home.stat().st_uid != os.geteuid():
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.geteuid() or why_untrusted(folder) is not None:
        return
    replace(path, content)
    _prune(folder, kind)


def _prune(folder: Path, kind: str) -> None:
    made = sorted(folder.glob(f"{kind}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    now = time.time()
    abandoned = [path for path in folder.glob(".*.tmp") if now - path.stat().st_mtime > _ABANDONED_S]
    for path in (*made[_KEPT:], *abandoned):
        path.unlink(missing_ok=True)
