"""What mini-slurm tells the person who runs it: one line per fact, on standard error."""

import sys
import time

_STARTED = time.monotonic()


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"mini-slurm: {text}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print something that must not be overlooked."""
    print(f"mini-slurm: NOTE: {text}", file=sys.stderr, flush=True)


def elapsed() -> float:
    """Seconds since this program started."""
    return time.monotonic() - _STARTED
