"""What kind of file system a path lies on, from the mount table: networks have caches and no inotify."""

from __future__ import annotations

from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "f2fs", "bcachefs", "reiserfs", "jfs"}
)


def find_type(path: Path) -> str | None:
    """Type of the file system that holds ``path`` (``nfs4``, ``lustre``, ``ext4``…); None where it cannot be told."""
    target = path.resolve()
    best: tuple[int, str] | None = None
    for point, kind in _mounts():
        if (target == point or point in target.parents) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), kind)
    return best[1] if best else None


def is_local(path: Path) -> bool:
    """Whether this host alone writes there, so that inotify sees everything; unknown counts as a network."""
    return find_type(path) in _LOCAL


def _mounts() -> list[tuple[Path, str]]:
    """Mount points and types. Source: proc(5), /proc/pid/mountinfo; blanks in paths are written as ``\\040``."""
    try:
        lines = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if separator and len(fields) > 4 and after:
            point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
            found.append((Path(point), after.split(" ")[0]))
    return found
