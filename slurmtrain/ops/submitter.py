"""Who is at the keyboard."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Any


def submitter() -> dict[str, Any]:
    """Who submits, from where."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return {"user": user, "uid": os.getuid(), "host": socket.gethostname()}
