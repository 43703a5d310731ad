"""The exceptions that ranks wrote down themselves (torchelastic's @record)."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 5
SIZE_LIMIT = 2 << 20
WHERE = ("batch_host", "watcher")
_MOST, _LARGEST = 64, 256 << 10


def collect(scene: Scene) -> None:
    files = sorted(scene.launch_dir.glob("error-*.json"))
    for path in files[:_MOST]:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            continue
        text = path.open("rb").read(_LARGEST).decode("utf-8", "replace")
        scene.write(path.name, text)
        print(f"{path.stem.removeprefix('error-')}: {_message(text)}")
    if len(files) > _MOST:
        scene.note(f"{len(files)} ranks left an error file; the first {_MOST} are kept")


def _message(text: str) -> str:
    """Its first line: ``{"message": {"message": "ValueError: …", "extraInfo": {…}}}`` or ``{"message": "…"}``."""
    try:
        value: Any = json.loads(text)
        for _ in range(2):
            value = value["message"] if isinstance(value, dict) else value
    except (ValueError, KeyError, RecursionError):
        return "not readable as JSON"
    return str(value).strip().partition("\n")[0][:500]
