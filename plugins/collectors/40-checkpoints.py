"""The checkpoints that there are, the newest ones with what their check says."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from slurmtrain.checkpoints.check import check
from slurmtrain.checkpoints.find import Found, find_all
from slurmtrain.checkpoints.model import RESUMABLE
from slurmtrain.store.rundir import RunDir

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 20
SIZE_LIMIT = 512 << 10
WHERE = ("batch_host", "watcher")
_CHECKED, _LISTED, _CHECK_S = 3, 500, 10.0


def collect(scene: Scene) -> None:
    run = RunDir(scene.run_dir)
    options = run.read_plan().spec.checkpoint
    found = find_all(run.path, options)
    begun = time.monotonic()
    rows: list[dict[str, Any]] = []
    newest = None
    for item in found[:_LISTED]:
        row: dict[str, Any] = {"path": str(item.path), "step": item.step, "modified": item.modified}
        if len(rows) < _CHECKED and time.monotonic() - begun < _CHECK_S:
            row |= _check(item, options.marker)
            newest = newest or (row["path"] if row["resumable"] else None)
        rows.append(row)
    if not rows:
        scene.note(f"there is no checkpoint in {scene.checkpoint_dir}")
        return
    kept = {"newest_valid": newest, "found": len(found), "checkpoints": rows}
    scene.write("checkpoints.json", json.dumps(kept, indent=1) + "\n")
    if newest is None:
        scene.note(f"none of the newest {min(len(rows), _CHECKED)} checkpoints passes its check")


def _check(item: Found, marker: str | None) -> dict[str, Any]:
    verdict = check(item.path, marker=marker, parts=item.parts)
    return {
        "health": verdict.health.value,
        "format": verdict.format,
        "detail": verdict.detail,
        "resumable": verdict.health in RESUMABLE,
    }
