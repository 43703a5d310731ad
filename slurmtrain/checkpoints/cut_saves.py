"""Saves that were killed in the moment between "the old folder is taken away" and "the new one is in its place".

``slurmtrain.training.atomic_save`` swaps the two at once where the file system can; NFS cannot. A save's hidden folder
``.<name>.….tmp`` then holds the new checkpoint, whole, and ``.old-<n>``, the one that it replaces.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path, PurePath

_HIDDEN = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)
_OLD = ".old-"


def finish_cut_saves(directory: Path, pattern: str) -> list[Path]:
    """Put such checkpoints in their place, in the folders that the pattern looks into; which. Never raises.

    Nobody of the run may be writing.
    """
    done: list[Path] = []
    where, folders = str(PurePath(pattern).parent), [directory]
    with contextlib.suppress(OSError, ValueError, NotImplementedError, RuntimeError):
        folders += [path for path in directory.glob(where) if path.is_dir()] if where != "." else []
    for folder in folders:
        with contextlib.suppress(OSError):
            for hidden in [path for path in folder.iterdir() if _HIDDEN.fullmatch(path.name)]:
                with contextlib.suppress(OSError):
                    done += _finish(hidden)
    return done


def _finish(hidden: Path) -> list[Path]:
    names = [] if hidden.is_symlink() else sorted(os.listdir(hidden))  # noqa: PTH208
    done = []
    if any(name.startswith(_OLD) for name in names):
        for name in (name for name in names if not name.startswith(".")):
            if not os.path.lexists(hidden.parent / name):
                done.append((hidden / name).rename(hidden.parent / name))
    return done
