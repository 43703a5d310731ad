"""The processes of a launch on this node, found in /proc, and signals to those of them that listen.

Under ``proctrack/cgroup`` a signal sent through Slurm reaches only the direct child of slurmstepd: a ``bash -c``
wrapper or torchrun, which die of USR2 without saving anything. So a stop signal goes to the processes that catch it,
by pid.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_MAX_ENVIRON = 1 << 20
_MAX_STEP = 0xFFFFFFF0  # SLURM_MAX_NORMAL_STEP_ID: numbers above mean batch script, extern step and the like


@dataclass(frozen=True, slots=True)
class Process:
    """One process of ours. ``start_ticks`` tells it from a later process with the same pid."""

    pid: int
    parent: int
    start_ticks: int
    caught: int  # bit mask of signals that have a handler
    launch: str  # "<attempt>.<launch>", the launch it belongs to
    step: str  # Slurm's step id

    @property
    def attempt(self) -> int:
        """-1 where the launch's name makes no sense."""
        number = self.launch.partition(".")[0]
        return int(number) if number.isascii() and number.isdigit() else -1


def find_launch_processes(job_id: str, attempt: int | None = None) -> list[Process]:
    """Processes on this node that belong to a launch of this job and to this user; zombies are left out.

    ``attempt`` leaves out those of other attempts: a node that was lost and came back may hold both.
    """
    found = _find(job_id, of_step=True)
    return found if attempt is None else [process for process in found if process.attempt == attempt]


def newest_launch(processes: Iterable[Process]) -> str:
    """The key of the last launch among them; empty where there is none."""
    return max((process.launch for process in processes), key=launch_number, default="")


def launch_number(key: str) -> int:
    """The second half of ``<attempt>.<launch>``; -1 where that is no number."""
    number = key.partition(".")[2]
    return int(number) if number.isascii() and number.isdigit() else -1


def find_starters(job_id: str) -> list[Process]:
    """What starts steps from the batch script's side: ``launch.sh``, what it runs, and srun. ``step`` is empty."""
    return _find(job_id, of_step=False)


def find_companions(job_id: str) -> list[Process]:
    """Other companions of this job on this node, of any attempt; ``launch`` is empty."""
    found = []
    for pid in _pids():
        values = read_environ(pid)
        ours = values.get("SLURM_JOB_ID") == job_id and _same_node(values.get("SLURMD_NODENAME", ""))
        if ours and (step := _step_of(values)) and "companion" in _arguments_of(pid):
            process = _read_process(pid, "", step)
            found += [process] if process and "SLURMTRAIN_LAUNCH_KEY" not in values else []
    return found


def _find(job_id: str, *, of_step: bool) -> list[Process]:
    found = []
    for pid in _pids():
        launch = _launch_of(pid, job_id)
        process = _read_process(pid, *launch) if launch and bool(launch[1]) is of_step else None
        if process is not None:
            found.append(process)
    return found


def all_listen(processes: Iterable[Process], number: int) -> bool:
    """Whether each task (the topmost process of a family) catches ``number``; one that does not would die of it."""
    by_pid = {process.pid: process for process in processes}
    tasks = [process for process in by_pid.values() if process.parent not in by_pid]
    return bool(tasks) and all(catches(task, number) for task in tasks)


def some_listen(processes: Iterable[Process], number: int) -> bool:
    """Whether any process catches ``number``: where it is sent by pid, that one saves for all."""
    return any(catches(process, number) for process in processes)


def send_stop_signal(processes: Iterable[Process], number: int, already: Container[int] = ()) -> list[int]:
    """Signal those that catch ``number``, the topmost of each family only; the pids that got it.

    Children that inherit a handler (data loader workers) are spared: their parent decides for them, also one that is
    among those that have got it ``already``.
    """
    by_pid = {process.pid: process for process in processes}
    reached = []
    for process in by_pid.values():
        topmost = not any(catches(ancestor, number) for ancestor in _ancestors(process, by_pid))
        listens = process.pid not in already and topmost and catches(process, number)
        if listens and _caught_mask(process.pid) >> (number - 1) & 1 and _kill(process, number):  # still: it may leave
            reached.append(process.pid)
    return reached


def end_processes(processes: Iterable[Process], number: int) -> None:
    """Signal all of them, whether they listen or not."""
    for process in processes:
        _kill(process, number)


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def parent_of(pid: int) -> int:
    """The parent's pid; 0 if the process is gone."""
    fields = _stat_fields(pid)
    return int(fields[1]) if fields else 0


def catches(process: Process, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    return bool(process.caught >> (number - 1) & 1)


def _ancestors(process: Process, by_pid: dict[int, Process]) -> Iterator[Process]:
    seen = {process.pid}
    while process.parent in by_pid and process.parent not in seen:
        process = by_pid[process.parent]
        seen.add(process.pid)
        yield process


def _kill(process: Process, number: int) -> bool:
    if start_ticks(process.pid) != process.start_ticks:
        return False
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _pids() -> Iterator[int]:
    own = os.getpid()
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != own:
            yield int(entry.name)


def read_environ(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty where it cannot be read."""
    try:
        with open(_PROC / str(pid) / "environ", "rb") as stream:
            items = stream.read(_MAX_ENVIRON).decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in items if "=" in item)


def _arguments_of(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "cmdline").read_text("utf-8", "replace").split("\0")
    except OSError:
        return []


def read_state(pid: int) -> str:
    """The state letter of /proc: R runs, S sleeps, D waits in the kernel, T is stopped; empty where it is gone."""
    fields = _stat_fields(pid)
    return fields[0] if fields else ""


def _launch_of(pid: int, job_id: str) -> tuple[str, str] | None:
    """Launch key and step id from the environment a process was started with; None for any other process.

    On the batch script's side the step id is empty; the srun of the companions has no launch, and the agent's mark.
    """
    values = read_environ(pid)
    if values.get("SLURM_JOB_ID") != job_id or "SLURM_PROCID" not in values:
        return None
    if not _same_node(values.get("SLURMD_NODENAME", "")):
        return None
    key, step = values.get("SLURMTRAIN_LAUNCH_KEY", ""), _step_of(values)
    if not key and (step or "SLURMTRAIN_AGENT" not in values):
        return None  # bash, the agent, a companion
    return key, step


def _step_of(environ: dict[str, str]) -> str:
    """The id of the step that a process is a task of; empty for the batch script's side.

    Slurm 24.11 and before set no SLURM_STEP_ID there, 26.05 sets -5.
    """
    text = environ.get("SLURM_STEP_ID", "")
    return text if text.isascii() and text.isdigit() and int(text) <= _MAX_STEP else ""


def _same_node(name: str) -> bool:
    """Several nodes may share one machine (slurmd -N), and then its /proc."""
    here = os.environ.get("SLURMD_NODENAME", "")
    return not here or not name or name == here


def _read_process(pid: int, launch: str, step: str) -> Process | None:
    fields = _stat_fields(pid)
    if not fields or fields[0] in {"Z", "X"}:
        return None
    return Process(pid, int(fields[1]), int(fields[19]), _caught_mask(pid), launch, step)


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state on; the name before may hold anything, so it is cut at its last ')'."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return []
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > 19 else []


def _caught_mask(pid: int) -> int:
    try:
        for line in (_PROC / str(pid) / "status").read_text("utf-8", "replace").splitlines():
            if line.startswith("SigCgt:"):
                return int(line.split()[1], 16)
    except (OSError, ValueError, IndexError):
        return 0
    return 0


def signal_number(name: str) -> int | None:
    """``USR2`` or ``SIGUSR2`` → its number; None for ``none`` and for what is no signal."""
    plain = name.upper().removeprefix("SIG")
    try:
        return int(signal.Signals[f"SIG{plain}"])
    except KeyError:
        return None
