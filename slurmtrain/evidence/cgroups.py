"""Control groups of a job: limits, peaks and kills, of version 1 and 2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

_FILES = (
    # version 2: https://docs.kernel.org/admin-guide/cgroup-v2.html
    "memory.events", "memory.events.local", "memory.max", "memory.high", "memory.current", "memory.peak",
    "memory.swap.max", "memory.swap.current", "memory.swap.events", "memory.pressure", "memory.stat",
    "memory.numa_stat",
    "pids.max", "pids.current", "pids.events", "cpu.max", "cpu.stat", "cpuset.cpus.effective", "cpuset.mems.effective",
    "io.stat", "io.pressure",
    # version 1: https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
    "memory.limit_in_bytes", "memory.soft_limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes",
    "memory.failcnt", "memory.oom_control", "memory.memsw.limit_in_bytes", "memory.memsw.max_usage_in_bytes",
    "memory.memsw.failcnt", "memory.kmem.max_usage_in_bytes", "cpu.cfs_quota_us", "cpuset.cpus", "cpuset.mems",
    "devices.list",
)  # fmt: skip
_LARGEST = 16 << 10
_MOST_GROUPS = 120
_UNLIMITED = 1 << 60


def job_groups(pids: Iterable[str], proc: Path = Path("/proc")) -> list[Path]:
    """The groups of the processes, of the steps beside them, and those above them, from the root down."""
    found: set[Path] = set()
    for pid in pids:
        for group in _groups_of(pid, proc):
            found |= set(_up(group))
            found |= set(_steps_beside(group))
    return sorted(found)[:_MOST_GROUPS]


def _groups_of(pid: str, proc: Path) -> Iterator[Path]:
    try:
        lines = (proc / pid / "cgroup").read_text("utf-8", "replace").splitlines()
        mounts = [line.split() for line in (proc / "self" / "mounts").read_text("utf-8", "replace").splitlines()]
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for _, where, kind, options, *_ in mounts:
            wanted = set(controllers.split(",")) & {"memory", "pids", "cpu", "cpuset", "devices"}
            fits = kind == "cgroup2" if not controllers else kind == "cgroup" and wanted & set(options.split(","))
            if fits and Path(where + path).is_dir():
                yield Path(where + path)
                break


def _up(group: Path) -> Iterator[Path]:
    """The group and those above it that have limits, up to where the controller is mounted."""
    while (group / "cgroup.procs").exists() and len(group.parts) > 3:
        yield group
        group = group.parent


def _steps_beside(group: Path) -> Iterator[Path]:
    """The other steps of the job: the training's, seen from the companion's."""
    job = next((part for part in (group, *group.parents) if part.name.startswith("job_")), None)
    if job is not None:
        yield from (path for path in job.glob("step_*") if path.is_dir())
        yield from (path for path in job.glob("step_*/user") if path.is_dir())


def read_group(group: Path) -> dict[str, str]:
    """File → content; a content of several lines begins with a line break."""
    values = {}
    for name in _FILES:
        try:
            with (group / name).open("rb") as stream:
                text = stream.read(_LARGEST).decode("utf-8", "replace").strip()
        except OSError:
            continue
        values[name] = f"\n{text}" if "\n" in text else text
    return values


def describe_kills(values: dict[str, str]) -> str:
    """What of a group matters: processes killed for memory, a limit that was reached. "" for nothing."""
    told = []
    kills = _flat(values.get("memory.events.local", values.get("memory.events", ""))).get("oom_kill", 0)
    kills = max(kills, _flat(values.get("memory.oom_control", "")).get("oom_kill", 0))
    if kills:
        told.append(f"{kills} process{'es' if kills > 1 else ''} killed for memory")
    peak = _number(values.get("memory.peak") or values.get("memory.max_usage_in_bytes"))
    most = _number(values.get("memory.max") or values.get("memory.limit_in_bytes"))
    if peak is not None and most is not None and most < _UNLIMITED and peak >= most * 0.99:
        told.append(f"all of its {most >> 20} MiB were used")
    if _flat(values.get("pids.events", "")).get("max", 0):
        told.append(f"the limit of {values.get('pids.max', '?')} processes was reached")
    return ", ".join(told)


def _flat(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
