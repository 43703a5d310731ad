"""The last collectives of each rank, where torch's watchdog has written them: which rank missed which one."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slurmtrain.evidence.flight_recorder import PREFIX, Dump, find_missing, read_dump

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 25
SIZE_LIMIT = 1 << 20
WHERE = ("batch_host", "watcher")
_MOST = 4096
_READ_S = 15.0  # a thousand ranks leave gigabytes


def collect(scene: Scene) -> None:
    dumps: dict[int, Dump] = {}
    begun, files = time.monotonic(), sorted(_find(scene).items())[:_MOST]
    for rank, path in files:
        if time.monotonic() - begun > _READ_S:
            scene.note(f"the records of {len(dumps)} of {len(files)} ranks could be read in {_READ_S:g} s")
            break
        try:
            if stat.S_ISREG(path.lstat().st_mode):
                dumps[rank] = read_dump(path)
        except (OSError, ValueError) as exc:
            scene.note(f"{path}: {exc}")
    for sentence in find_missing(dumps, complete=len(dumps) == len(files)):
        scene.note(sentence)
        print(sentence)
    for rank, dump in dumps.items():
        for name, group in dump.groups.items():
            last = group.calls.get(group.enqueued)
            print(
                f"rank {rank}, group {name or '0'}: entered {group.enqueued}, completed {group.completed}"
                + (f", last {last.name} {last.sizes} {last.where}" if last else "")
            )


def _find(scene: Scene) -> dict[int, Path]:
    """Where the launch script told torch to write, or where the job file said so itself."""
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    chosen = next((scene.environ[name] for name in names if scene.environ.get(name)), "")
    prefix = Path(chosen) if chosen.startswith("/") else scene.launch_dir / PREFIX
    found = {}
    for path in prefix.parent.glob("*"):
        rank = path.name.removeprefix(prefix.name)
        if path.name.startswith(prefix.name) and rank.isascii() and rank.isdigit() and len(rank) < 8:
            found[int(rank)] = path
    if not chosen.startswith(str(scene.launch_dir)):  # a place of the user's may hold those of earlier launches
        found = {rank: path for rank, path in found.items() if path.stat().st_mtime >= scene.since}
    return found
