"""Files that slurmtrain obeys or runs: where the bundled ones are, and which of other people's may be trusted.

On a shared file system a folder of plugins, templates or settings that others may write is a way into the account of
everybody who uses it, so what others may change is refused.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from slurmtrain.errors import NotFoundError, RefusedError


def bundled(folder: str) -> Path:
    """The bundled ``templates`` or ``plugins`` directory, wherever this installation keeps it."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "_bundled" / folder, package.parent / folder):
        if candidate.is_dir():
            return candidate
    raise NotFoundError(
        f"the folder {folder!r} that ships with slurmtrain is missing beside {package}: install slurmtrain again"
    )


def why_untrusted(path: Path, trusted: Iterable[Path] = ()) -> str | None:
    """Why somebody else could put words into this file or folder, with the remedy; None where only we or root can.

    The owner may be another user where the path lies in a folder that the user named in ``trusted``. Every folder above
    counts too: who may rename a folder may replace what is in it. The group may write where it holds nobody else.
    """
    try:
        real = path.resolve(strict=True)
        chain = [real, *real.parents]
        owned_by_trust = any(real.is_relative_to(folder.resolve()) for folder in trusted)
        for place in chain:
            reason = _why_untrusted(place, place.stat(), is_parent=place != real, owner_is_trusted=owned_by_trust)
            if reason:
                return reason
    except OSError as exc:
        return f"{path} cannot be examined: {exc.strerror or exc}"
    return None


def require_trusted(path: Path, what: str, trusted: Iterable[Path] = ()) -> None:
    """Raise ``RefusedError`` for a file or folder that somebody else could change. ``what`` names it for a person."""
    reason = why_untrusted(path, trusted)
    if reason:
        raise RefusedError(f"{what} {path} is not used: {reason}")


def _why_untrusted(place: Path, info: os.stat_result, *, is_parent: bool, owner_is_trusted: bool) -> str | None:
    sticky = is_parent and bool(info.st_mode & stat.S_ISVTX)  # like /tmp: others cannot rename what is ours
    if info.st_mode & stat.S_IWOTH and not sticky:
        return f"everybody may change {place}; run: chmod o-w {place}"
    if info.st_mode & stat.S_IWGRP and not sticky and not _group_is_private(info):
        return f"the group {_group_name(info.st_gid)} may change {place}; run: chmod g-w {place}"
    if info.st_uid not in {0, os.geteuid()} and not is_parent and not owner_is_trusted:
        return (
            f"it belongs to {_user_name(info.st_uid)}, who could run commands as you with it; copy it, "
            f'or add its folder to trust = ["…"] in your own settings'
        )
    return None


def _group_is_private(info: os.stat_result) -> bool:
    """Whether nobody but the owner and root is in the group: the usual "user private group"."""
    if info.st_gid == 0:
        return True
    try:
        owner = pwd.getpwuid(info.st_uid)
        group = grp.getgrgid(info.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == info.st_gid and set(group.gr_mem) <= {owner.pw_name} and group.gr_name == owner.pw_name


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
