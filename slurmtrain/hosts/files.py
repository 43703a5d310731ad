"""Opening files that others may have put where ours should be."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


class NoFileError(OSError):
    """Where a file should be lies a FIFO, a device or a directory, which nothing of ours makes."""


def open_file(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a file for reading, and nothing else: opening a FIFO that nobody writes would wait for ever.

    ``follow``: also what a symbolic link leads to. Raises ``OSError``; ``NoFileError`` for what is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NoFileError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")
