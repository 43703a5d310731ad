"""``folded.zip``: the many small files of a run that has ended, in one archive, under their names in the run directory.

It is written beside its place and renamed into it; only then are the files themselves taken away. Scenes may hold
secrets that were not recognised, so the archive is for its owner alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from slurmtrain.errors import StoreError

NAME = "folded.zip"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1 << 20
_MAX_READ = 64 << 20


def fold(run_dir: Path, folders: list[Path], *, skip: Callable[[Path], bool] = lambda _: False) -> int:
    """Put every regular file below ``folders`` into the run's archive, beside what is there; how many it holds then.

    Links, FIFOs and devices are left out. Nothing is taken away here. Raises ``StoreError``.
    """
    target = run_dir / NAME
    temporary = run_dir / f".{NAME}.{secrets.token_hex(4)}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
                known = _copy_old(target, archive)
                for path in _files(folders):
                    name = str(PurePosixPath(path.relative_to(run_dir)))
                    if name not in known and not skip(path):
                        _add(archive, path, name)
                        known.add(name)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
        return len(known)
    except (OSError, zipfile.BadZipFile, zlib.error, ValueError) as exc:
        with contextlib.suppress(OSError):
            temporary.unlink()
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else exc
        raise StoreError(f"cannot write {target}: {reason}") from exc


def _copy_old(target: Path, archive: zipfile.ZipFile) -> set[str]:
    known: set[str] = set()
    if not target.is_file():
        return known
    with zipfile.ZipFile(target) as old:
        for entry in old.infolist():
            with old.open(entry) as source, archive.open(entry.filename, "w", force_zip64=True) as copy:
                while data := source.read(_CHUNK):
                    copy.write(data)
            known.add(entry.filename)
    return known


def _files(folders: list[Path]) -> Iterator[Path]:
    """Regular files, in order; folders are not entered through links."""
    for folder in folders:
        if folder.is_symlink():
            continue
        if folder.is_file():
            yield folder
        for root, names, files in os.walk(folder, followlinks=False):
            names.sort()
            yield from (Path(root) / name for name in sorted(files))


def _add(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC) if _is_file(path) else -1
    if descriptor < 0:
        return
    with os.fdopen(descriptor, "rb") as source:
        found = os.fstat(source.fileno())
        if not stat.S_ISREG(found.st_mode):
            return
        entry = zipfile.ZipInfo(name, _EPOCH)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (stat.S_IFREG | 0o600) << 16
        with archive.open(entry, "w", force_zip64=True) as copy:
            while data := source.read(_CHUNK):
                copy.write(data)


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def read_folded(run_dir: Path, name: str) -> bytes | None:
    """A file of the run that was folded, by its name in the run directory; None where there is none. Never raises."""
    try:
        with zipfile.ZipFile(run_dir / NAME) as archive, archive.open(name) as stream:
            return stream.read(_MAX_READ)
    except (OSError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError):
        return None


def list_folded(run_dir: Path, prefix: str = "") -> list[str]:
    """The names in the archive that begin so, in order. Never raises."""
    with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(run_dir / NAME) as archive:
        return sorted(name for name in archive.namelist() if name.startswith(prefix))
    return []
