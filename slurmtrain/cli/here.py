"""Where the person stands."""

from __future__ import annotations

import os
from pathlib import Path

from slurmtrain.errors import NotFoundError


def find_here() -> Path:
    """The working directory as the person sees it: ``$PWD`` keeps links that name a mount.

    Raises ``NotFoundError`` where it was deleted.
    """
    try:
        real = Path.cwd()
    except FileNotFoundError:
        raise NotFoundError("the working directory does not exist any more; change to another one") from None
    seen = os.environ.get("PWD", "")
    try:
        return Path(seen) if seen.startswith("/") and Path(seen).samefile(real) else real
    except OSError:
        return real
