"""The last lines that each rank printed, rank by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmtrain.evidence.rank_tails import format_tails, read_tails

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 10
SIZE_LIMIT = 4 << 20
WHERE = ("batch_host", "watcher")
_MOST_FILES = 256


def collect(scene: Scene) -> None:
    logs = [(scene.log_file, scene.log_offset)] if scene.log_file else []
    logs += [(path, 0) for path in sorted(scene.launch_dir.glob("node-*.log"))[:_MOST_FILES]]
    read = False
    for path, offset in logs:
        try:
            tails = read_tails(path, offset, limit=(32 << 20) // len(logs))
        except OSError as exc:
            scene.note(f"cannot read {path}: {exc.strerror or exc}")
            continue
        read = True
        if tails:
            scene.write(f"{path.stem}.txt", format_tails(tails, SIZE_LIMIT // len(logs) // 2))
    if not read:
        scene.note("the launch has no log that can be read")
