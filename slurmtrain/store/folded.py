"""``folded.zip``: the many small files of a run that has ended, in one archive, under their names in the run directory.

It is written beside its place and renamed into it; only then are the files themselves taken away. Scenes may hold
secrets that were not recognised, so the archive is for its owner alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from slurmtrain.errors import StoreError
from slurmtrain.hosts.files import NoFileError, open_file

NAME = "folded.zip"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1 << 20
_MOST_UNFOLDED = 256 << 20
_BROKEN = (OSError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError)


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
    if not _is_file(path):
        return
    with contextlib.suppress(NoFileError), open_file(path, follow=False) as source:
        entry = zipfile.ZipInfo(name, _EPOCH)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (stat.S_IFREG | 0o600) << 16
        with archive.open(entry, "w", force_zip64=True) as copy:
            while data := source.read(_CHUNK):
                copy.write(data)


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


@contextmanager
def unfolded(run_dir: Path, prefix: str) -> Iterator[Path | None]:
    """A temporary folder in which what was folded below ``prefix`` has its names again; None where nothing was.

    Of more than 256 MiB the rest is left out, and so are names that lead elsewhere. Never raises.
    """
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(run_dir / NAME))
            names = [name for name in archive.namelist() if name.startswith(prefix) and _is_plain(name)]
            if not names:
                yield None
                return
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurmtrain-")))
            _extract(archive, names, folder)
        except _BROKEN:
            yield None
            return
        yield folder


def _is_plain(name: str) -> bool:
    parts = name.split("/")
    return not name.startswith("/") and "\0" not in name and all(part not in ("", ".", "..") for part in parts)


def _extract(archive: zipfile.ZipFile, names: list[str], folder: Path) -> None:
    left = _MOST_UNFOLDED
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as source, target.open("xb") as copy:
            while left > 0 and (data := source.read(min(_CHUNK, left))):
                copy.write(data)
                left -= len(data)
