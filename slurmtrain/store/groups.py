"""Groups: the runs that one ``sbatch --array`` made. Each is a run of its own; the group says which they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.errors import NotFoundError, StoreError
from slurmtrain.store.publish import read_json
from slurmtrain.store.rundir import RUN_ID, RunDir


@dataclass(frozen=True, slots=True)
class GroupDir:
    """``<store>/groups/<group id>``; the runs lie in ``<store>/runs/<group id>-<task>``."""

    path: Path

    @property
    def group_id(self) -> str:
        return self.path.name

    @property
    def record(self) -> Path:
        """Which tasks there are, in words of ``sbatch --array``, and who submitted them."""
        return self.path / "group.json"

    @property
    def spec(self) -> Path:
        return self.path / "spec.yaml"

    @property
    def batch_script(self) -> Path:
        """One script for all tasks: it finds its run by ``SLURM_ARRAY_TASK_ID``."""
        return self.path / "job.sbatch"

    @property
    def submission(self) -> Path:
        """Exists once Slurm accepted the array: its job id."""
        return self.path / "submission.json"

    @property
    def runs(self) -> Path:
        """What the paths of its runs begin with: ``-<task>`` follows."""
        return self.path.parent.parent / "runs" / self.group_id

    def run(self, task: int) -> RunDir:
        return RunDir(self.runs.with_name(f"{self.group_id}-{task}"))

    def read_tasks(self) -> tuple[int, ...]:
        """Task numbers in ascending order. Raises ``NotFoundError`` where the record is missing or unreadable."""
        tasks = (read_json(self.record) or {}).get("tasks")
        if not isinstance(tasks, list) or not all(isinstance(task, int) and task >= 0 for task in tasks):
            raise NotFoundError(f"{self.path} is no group of runs: {self.record.name} is missing or unreadable")
        return tuple(sorted(tasks))

    def read_runs(self) -> list[RunDir]:
        """The runs that exist, by task number."""
        return [run for run in (self.run(task) for task in self.read_tasks()) if run.path.is_dir()]

    def read_job_id(self) -> str:
        """The array's job id; "" where Slurm's answer is not known."""
        return str((read_json(self.submission) or {}).get("job_id", ""))


def groups_of(store: Path) -> list[GroupDir]:
    """All groups of a store, by name. An absent store has none."""
    folder = store / "groups"
    try:
        return [GroupDir(p) for p in sorted(folder.iterdir()) if RUN_ID.fullmatch(p.name) and p.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise StoreError(f"cannot list the groups in {folder}: {exc.strerror or exc}") from exc


def members_of(store: Path) -> Iterator[tuple[str, str, int]]:
    """``(run id, group id, task)`` of every run that belongs to a group; groups that cannot be read have none."""
    for group in groups_of(store):
        try:
            tasks = group.read_tasks()
        except (NotFoundError, StoreError):
            continue
        for task in tasks:
            yield group.run(task).run_id, group.group_id, task
