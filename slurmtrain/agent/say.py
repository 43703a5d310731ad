"""Lines in the job's log that come from slurmtrain and not from the training."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """One marked line; a full disk or a closed output never stops the training."""
    clean = "".join(c if c.isprintable() else "?" for c in text)[:2000]
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(f"slurmtrain: {clean}\n")
        sys.stdout.flush()
