"""The user's processes on the node as a tree, with state and the kernel function that each waits in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 5
SIZE_LIMIT = 1 << 20
_COLUMNS = "pid,ppid,stat,wchan:32,lstart,rss,pcpu,args"


def collect(scene: Scene) -> None:
    done = scene.run("ps", "-U", str(os.getuid()), "-o", _COLUMNS, "--forest", "-ww", timeout_s=4)
    if done.stdout:
        scene.write("ps.txt", done.stdout)
