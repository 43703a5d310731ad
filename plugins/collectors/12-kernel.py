"""What the kernel said since the launch began: Xid lines of the GPU driver, out-of-memory kills, errors of devices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from slurmtrain.evidence.kernel_log import read_kernel_log, summarize

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 8
SIZE_LIMIT = 2 << 20
_MARGIN_S = 60.0  # before the launch: a GPU may have failed just when it began
_UNKNOWN_S = 3600.0


def collect(scene: Scene) -> None:
    since = scene.since - _MARGIN_S if scene.since else time.time() - _UNKNOWN_S
    lines = read_kernel_log(since, scene.run, scene.note)
    if lines:
        scene.write("kernel.txt", "\n".join(lines) + "\n")
    for finding in summarize(lines):
        scene.note(finding)
