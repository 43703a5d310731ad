"""Check one checkpoint: cheaply by default (headers, indexes, sizes, small checksums), or every byte on request."""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from slurmtrain.checkpoints import (
    archive,
    dcp,
    deepspeed,
    hdf5,
    megatron,
    numpyfile,
    orbax,
    plain,
    safetensors,
    tensorflow,
    torchlegacy,
    trainer,
)
from slurmtrain.checkpoints.model import Corrupt, Entry, Format, Health, Incomplete, Reading, Verdict
from slurmtrain.checkpoints.own import load_own
from slurmtrain.checkpoints.sample import spread

CHEAP_BYTES = 64 << 20  # that are read for checksums without being asked
CHEAP_S = 10.0
_HEAD = 4096
_WALK_SHARE = 0.9  # of the time: when its folders are listed
_ZIP_END = b"PK\x05\x06"

FILES = (
    Format("torch", archive.is_torch_archive, archive.check_torch_archive),
    Format("zip", archive.is_archive, archive.check_archive),
    Format("hdf5", hdf5.is_hdf5, hdf5.check_hdf5),
    Format("npy", numpyfile.is_npy, numpyfile.check_npy),
    Format("torch-legacy", torchlegacy.is_torch_legacy, torchlegacy.check_torch_legacy),
    Format("pickle", torchlegacy.is_pickle, torchlegacy.check_pickle),
    Format("safetensors", safetensors.is_safetensors, safetensors.check_safetensors),
    Format("json", plain.is_json, plain.check_json),
)
FOLDERS = (
    Format("megatron", megatron.is_megatron, megatron.check_megatron),
    Format("deepspeed", deepspeed.is_deepspeed, deepspeed.check_deepspeed),
    Format("trainer", trainer.is_trainer, trainer.check_trainer),
    Format("dcp", dcp.is_dcp, dcp.check_dcp),
    Format("orbax", orbax.is_orbax, orbax.check_orbax),
)
_SHARDED = (FOLDERS[1], FOLDERS[3])  # DeepSpeed's, and torch's
_TENSORFLOW = Format("tensorflow", tensorflow.is_tensorflow, tensorflow.check_tensorflow)
Folder = tuple[Path, list[str], list[str]]  # and the names of folders and of others in it


def check(
    path: Path,
    *,
    deep: bool = False,
    marker: str | None = None,
    parts: frozenset[str] = frozenset(),
    own: Path | None = None,
) -> Verdict:
    """The verdict about one checkpoint. Never raises for what it finds.

    ``marker`` is a file that the training writes last: in the folder, or beside the file as ``<name><marker>``.
    ``parts`` are the names of the files that make up a checkpoint whose path is only their common beginning.
    ``own`` is the run's file of further formats (``checkpoints.own``), whose code is then run.
    """
    reading = Reading(deep, CHEAP_BYTES, math.inf if deep else CHEAP_S)
    name = "plain"
    try:
        entry = look(path) if not parts else Entry(path, False, 0, b"", parts)
        ours = next((form for form in load_own(own) if not parts and form.matches(entry)), None)
        form = ours or (_TENSORFLOW if parts else _find_format(entry))
        name = form.name if form is not None else name
        if marker is not None and not _has_marker(entry, marker):
            raise Incomplete(f"{path.name} has no {marker}, which the training writes last")
        known = _check_entry(entry, form, reading) if ours is None else _trust(ours, entry, reading)
        _find_again(entry)
    except (Incomplete, Corrupt, FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
        return _blame(path, parts, name, exc, reading.step)
    except MemoryError:
        return Verdict(Health.UNREADABLE, name, f"{path.name} cannot be checked with the memory that is allowed here")
    except OSError as exc:
        return Verdict(Health.UNREADABLE, name, f"{path.name} cannot be read: {exc.strerror or exc}")
    known = known or marker is not None
    return Verdict(
        Health.VALID if known else Health.UNKNOWN, name, _say_left_out(reading), reading.step, deep and reading.complete
    )


def _say_left_out(reading: Reading) -> str:
    """What was not looked at whole; it says nothing against the checkpoint."""
    return f"looked at in part: {'; '.join(reading.left_out)}" if reading.left_out else ""


def _blame(path: Path, parts: frozenset[str], name: str, exc: Exception, step: int | None) -> Verdict:
    """The verdict about one that is not whole: what is deleted in this moment is not called broken."""
    if not is_there(path, parts):
        return Verdict(Health.GONE, name, f"{path.name} was deleted while it was checked", step)
    if isinstance(exc, OSError):
        lost = Path(str(exc.filename or path)).name
        return Verdict(Health.INCOMPLETE, name, f"{path.name} has lost {lost[:80]!r} while it was checked", step)
    return Verdict(Health.CORRUPT if isinstance(exc, Corrupt) else Health.INCOMPLETE, name, str(exc), step)


def is_there(path: Path, parts: frozenset[str] = frozenset()) -> bool:
    """Whether a checkpoint still has its name, or one of its parts has; True where that cannot be told."""
    try:
        return any(os.path.lexists(one) for one in [path, *(path.parent / part for part in parts)])
    except OSError:
        return True


def _find_again(entry: Entry) -> None:
    """What was deleted meanwhile is missed: a file that is open can be read to its end all the same.

    Raises ``FileNotFoundError``.
    """
    there = {child.name for child in entry.path.iterdir()} if entry.is_dir else entry.names
    lost = next((name for name in sorted(entry.names) if name not in there), None)
    if lost is not None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(entry.path / lost))
    for path in [] if entry.is_dir else [entry.path.parent / name for name in entry.names] or [entry.path]:
        path.stat()


def _trust(form: Format, entry: Entry, reading: Reading) -> bool:
    """A format of the run's own has the whole say."""
    form.check(entry, reading)
    return True


def look(path: Path) -> Entry:
    """What is cheap to know about a file or folder. Raises ``OSError``."""
    info = path.stat()
    if stat.S_ISDIR(info.st_mode):
        return Entry(path, True, 0, b"", frozenset(child.name for child in path.iterdir()))
    if not stat.S_ISREG(info.st_mode):
        raise Corrupt(f"{path.name} is neither a file nor a folder")
    with path.open("rb") as stream:
        return Entry(path, False, info.st_size, stream.read(_HEAD), frozenset())


def _find_format(entry: Entry) -> Format | None:
    return next((form for form in (FOLDERS if entry.is_dir else FILES) if form.matches(entry)), None)


def _has_marker(entry: Entry, marker: str) -> bool:
    return marker in entry.names if entry.is_dir else entry.path.with_name(entry.path.name + marker).exists()


def _check_entry(entry: Entry, form: Format | None, reading: Reading) -> bool:
    """Whether the format is known; raises what a check raises."""
    if form is not _TENSORFLOW:
        plain.check_plain(entry, reading)
    if form is not None:
        form.check(entry, reading)
    elif not entry.is_dir:
        _refuse_damaged_head(entry)
    known = form is not None
    if entry.is_dir:
        tree = list(_walk(entry.path, reading))
        known = _check_folders(entry, tree, form, reading) or known
        known = _check_files(tree, reading) or known
    return known


def _check_files(tree: list[Folder], reading: Reading) -> bool:
    """Each file of it, or an even sample; ``.distcp`` files and their metadata are judged apart.

    Whether one of them is of a format that is known.
    """
    known = False
    paths = [root / name for root, _, names in tree for name in sorted(names) if not _is_of_dcp(name)]
    for looked, path in enumerate(spread(paths)):
        if looked and reading.out_of_time():
            reading.leave_out(f"{looked} of {len(paths)} files")
            break
        if _is_regular(path):
            step, reading.step = reading.step, None
            known = _check_part(look(path), reading) or known
            reading.step = step if step is not None else reading.step
    return known


def _is_of_dcp(name: str) -> bool:
    return name.endswith(".distcp") or name == ".metadata"


def _check_folders(entry: Entry, tree: list[Folder], form: Format | None, reading: Reading) -> bool:
    """Sharded checkpoints within another's, as the Trainer and accelerate keep those of DeepSpeed and of FSDP.

    Whether there is one.
    """
    known = False
    for root, folders, names in tree:
        part = Entry(root, True, 0, b"", frozenset([*folders, *names]))
        inner = next((one for one in _SHARDED if one.matches(part)), None)
        if inner is None or (root == entry.path and form in (*_SHARDED, FOLDERS[0])):
            continue
        step, known = reading.step, True
        inner.check(part, reading)
        reading.step = step if step is not None else reading.step
    return known


def _check_part(part: Entry, reading: Reading) -> bool:
    """One file of a folder; small notes of a program may be empty, what holds tensors may not."""
    form = _find_format(part)
    if part.size > 0:
        plain.check_plain(part, reading)
    if form is None or form.name == "json":
        if part.size == 0 and part.path.suffix in plain.TENSOR_SUFFIXES:
            raise Incomplete(f"{part.path.name} is empty")
        _refuse_damaged_head(part)
        return False
    form.check(part, reading)
    return True


def _refuse_damaged_head(entry: Entry) -> None:
    """A zip archive that does not begin like one."""
    if entry.size < 128 or entry.path.suffix not in {".pt", ".pth", ".ckpt", ".bin", ".npz", ".keras"}:
        return
    with entry.path.open("rb") as stream:
        stream.seek(-min(entry.size, 256), 2)
        if _ZIP_END in stream.read():
            raise Corrupt(f"{entry.path.name} ends as an archive of torch but does not begin as one")


def _walk(folder: Path, reading: Reading) -> Iterator[Folder]:
    """The folder and those in it, three levels deep. Raises ``OSError``."""
    for listed, (root, folders, names) in enumerate(os.walk(folder, onerror=_fail)):
        if listed and reading.out_of_time(_WALK_SHARE):
            reading.leave_out(f"no more than {listed} of its folders")
            return
        yield Path(root), sorted(folders), names
        folders[:] = [] if Path(root).relative_to(folder).parts[2:] else sorted(folders)


def _fail(error: OSError) -> None:
    raise error


def _is_regular(path: Path) -> bool:
    """Not for a link that leads nowhere. Raises ``OSError``, for a file, too, that is gone since it was listed."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        if path.is_symlink():
            return False
        raise
