"""When a file was made: Linux keeps it beside the time of the last write, and Python does not ask for it."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_STATX_BTIME = 0x800
_SIZE, _MASK_AT, _BTIME_AT = 256, 0, 80  # of struct statx, include/uapi/linux/stat.h


def read_birth(path: Path) -> float | None:
    """Seconds since the epoch, by the clock of the file system; None where it keeps no such time, or it cannot be had.

    A rename keeps it, and so does writing the file anew without removing it.
    """
    buffer = ctypes.create_string_buffer(_SIZE)
    try:
        statx = ctypes.CDLL(None).statx  # glibc 2.28
        failed = statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, buffer)
    except (AttributeError, OSError, ValueError, ctypes.ArgumentError):
        return None
    (mask,) = struct.unpack_from("=I", buffer, _MASK_AT)
    if failed or not mask & _STATX_BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _BTIME_AT)
    return float(seconds) + float(nanoseconds) / 1e9 if seconds > 0 else None
