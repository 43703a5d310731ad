"""Core files of the ranks that crashed, moved beside the launch, with back traces. Only where the job file asks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from slurmtrain.evidence.cores import (
    PATTERN,
    ask_handler,
    back_trace,
    find_cores,
    keep_core,
    piped_to,
    prune_cores,
)
from slurmtrain.store.rundir import RunDir

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 60
SIZE_LIMIT = 1 << 30
_GDB_S = 15.0


def collect(scene: Scene) -> None:
    options = RunDir(scene.run_dir).read_plan().spec.core_dumps
    if not options.enabled:
        return
    pattern = PATTERN.read_text()
    handler = piped_to(pattern)
    if handler:
        report, how = ask_handler(handler, scene.since, scene.run)
        scene.note(how)
        scene.write("handler.txt", report)
        return
    owner = {
        "SLURMTRAIN_RUN_DIR": str(scene.run_dir),
        "SLURMTRAIN_LAUNCH_KEY": f"{scene.attempt}.{scene.launch}",
    }
    folders = {scene.work_dir, Path(scene.environ.get("PWD", scene.work_dir))}  # environment.setup may change it
    cores = [core for folder in sorted(folders) for core in find_cores(pattern, folder, scene.since, owner)]
    for core in sorted(cores, key=lambda found: found.at):
        place, sentence = keep_core(core, scene.launch_dir, scene.node, only_one=options.ranks == "first")
        if sentence:
            scene.note(sentence)
        if place is not None:
            text = back_trace(place, core.about.program, scene.run, _GDB_S)
            if text:
                scene.write(f"back-trace-{core.rank or core.about.pid}.txt", text)
    for path in sorted((scene.launch_dir / "cores").glob("core-cuda-*")):
        scene.note(f"core file of a GPU, for cuda-gdb: {path}")
    if scene.batch_host:
        prune_cores(scene.run_dir, options.keep)
    if not cores and not os.path.isabs(pattern):  # noqa: PTH117 - of a pattern, not a path
        scene.note(f"no core file in {' or '.join(map(str, sorted(folders)))} since the launch began")
