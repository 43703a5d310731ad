"""Slurm's own records of the job, its steps and its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 15
SIZE_LIMIT = 2 << 20
WHERE = ("batch_host", "watcher")
_SACCT = (
    "JobIDRaw,JobID,JobName,State,ExitCode,DerivedExitCode,Restarts,Submit,Start,End,Elapsed,NodeList,NNodes,NTasks,"
    "ReqTRES,AllocTRES,MaxRSS,MaxRSSNode,MaxRSSTask,MaxVMSize,AveCPU,TRESUsageInMax,Reason,Comment,SystemComment"
)


def collect(scene: Scene) -> None:
    if not scene.job_id:
        scene.note("the launch has no job id")
        return
    commands = {
        "job.txt": ("scontrol", "show", "-d", "job", scene.job_id),
        "steps.txt": ("scontrol", "show", "step", scene.job_id),
        "squeue.txt": ("squeue", "-a", "-j", scene.job_id, "-o", "%i|%T|%r|%M|%l|%S|%e|%N|%Y"),
        "nodes.txt": ("scontrol", "show", "node", scene.nodes) if scene.nodes else (),
        "sacct.txt": ("sacct", "-j", scene.job_id, "--duplicates", "--parsable2", "-o", _SACCT)
        if scene.ending == "after"
        else (),  # while the job runs its rows are not yet written, and the database has better things to do
    }
    for name, argv in commands.items():
        if argv:
            done = scene.run(*argv, timeout_s=5)
            if done.stdout.strip():
                scene.write(name, done.stdout)
            elif not done.ok and done.returncode not in (124, 127):
                scene.note(f"{argv[0]} {argv[1]}: {_last(done.stderr) or f'ended with {done.returncode}'}")


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2]
