"""Where things lie in a store and in a run directory. The only place that knows the layout."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.core.array import ArrayTask, array_task_from_dict
from slurmtrain.core.jobid import JobId
from slurmtrain.core.spec import Spec, spec_from_dict
from slurmtrain.errors import NotFoundError, StoreError
from slurmtrain.store.publish import exists, publish_once, read_json, set_damaged_aside, to_json

HEARTBEAT = "heartbeat"  # in a launch's folder: the training may tell its step there (``SLURMTRAIN_HEARTBEAT``)
RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_LOG = re.compile(r"train-([0-9]{1,18}(?:[_+][0-9]{1,9})?)\.log", re.ASCII)
_NODE_LOG = re.compile(r"node-(?:([0-9]{1,3})-)?([0-9]{1,7})\.log", re.ASCII)
_ATTEMPT = re.compile(r"[0-9]{3,6}", re.ASCII)


@dataclass(frozen=True, slots=True)
class RunDir:
    """One run's directory. Properties name files; methods that read say so."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def spec(self) -> Path:
        return self.path / "spec.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def rules(self) -> Path:
        return self.path / "rules.json"

    @property
    def batch_script(self) -> Path:
        return self.path / "job.sbatch"

    @property
    def launch_script(self) -> Path:
        return self.path / "launch.sh"

    @property
    def rescue_script(self) -> Path:
        """With ``rescue: true``: the script of the job that looks after the run when its job has failed."""
        return self.path / "rescue.sbatch"

    @property
    def agent(self) -> Path:
        return self.path / "agent.pyz"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def submissions(self) -> Path:
        return self.path / "submissions"

    @property
    def done_file(self) -> Path:
        """Exists when the training, or we, said that the run has finished."""
        return self.path / "done"

    @property
    def stop_file(self) -> Path:
        """Exists when a person asked the run to stop; only its owner can make it."""
        return self.path / "stop"

    @property
    def uploaded_file(self) -> Path:
        """Exists when ``stage_out`` has taken the results away."""
        return self.path / "uploaded"

    @property
    def ship(self) -> Path:
        """With ``ship.url``: what is known about the remote copy. Lies there from the submission on."""
        return self.path / "ship"

    def stage_script(self, stage: str) -> Path:
        """``stage_in`` or ``stage_out``; the file is there if the run has such a stage."""
        return self.path / f"{stage}.sh"

    def misses_upload(self, spec: Spec) -> bool:
        """Whether ``stage_out`` is wanted and has not succeeded yet; never raises."""
        return bool(spec.stage_out.run) and not exists(self.uploaded_file)

    def is_over(self, spec: Spec) -> bool:
        """Whether nothing is left to do: the training has finished, and its results are where they belong."""
        return self.is_done() and not self.misses_upload(spec)

    def is_done(self) -> bool:
        """Whether the run has finished; never raises."""
        return exists(self.done_file)

    def mark_done(self, attempt: int) -> None:
        """Say that the training has finished, unless it has said so itself. A full store is forgiven."""
        with contextlib.suppress(OSError):
            if not self.is_done():
                self.done_file.write_text(f"attempt {attempt}\n")

    def attempt(self, number: int) -> AttemptDir:
        return AttemptDir(self.attempts / f"{number:03d}", number)

    def read_attempts(self) -> list[AttemptDir]:
        """All attempts that were claimed, oldest first."""
        try:
            names = [p.name for p in self.attempts.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise StoreError(f"cannot list {self.attempts}: {exc.strerror or exc}") from exc
        return [self.attempt(number) for number in sorted(int(n) for n in names if _ATTEMPT.fullmatch(n))]

    def log_file(self, job_id: str) -> Path:
        return self.logs / f"train-{job_id}.log"

    def find_logged_job(self) -> str:
        """The id of the newest job that has a log, "" for none; never raises."""
        try:
            names = [path.name for path in self.logs.iterdir()]
        except OSError:
            return ""
        found = [match[1] for match in map(_LOG.fullmatch, names) if match]
        return max(found, key=lambda name: int(re.split("[_+]", name)[0]), default="")

    def submission(self, number: int) -> Path:
        return self.submissions / f"{number:03d}.json"

    def read_submissions(self) -> dict[int, str]:
        """Which job each submission became; a submission whose reply was lost is absent."""
        found = self._read_folded_submissions()
        number = 0
        while True:
            record = read_json(self.submission(number)) if number not in found else {"job_id": found[number]}
            if record is None:
                if not exists(self.submission(number).with_suffix(".pending")):
                    return found
            else:
                found[number] = str(record.get("job_id", ""))
            number += 1

    @property
    def pinned_file(self) -> Path:
        """Exists while a person wants the run kept whatever limits say."""
        return self.path / "pinned"

    @property
    def folded_submissions(self) -> Path:
        """What was in ``submissions`` when a run that had ended was compacted: number → job id."""
        return self.path / "submissions.json"

    @property
    def pruned_file(self) -> Path:
        """Exists once logs and scenes of the run were deleted, and only what must stay is left."""
        return self.path / "pruned.json"

    def _read_folded_submissions(self) -> dict[int, str]:
        folded = read_json(self.folded_submissions) or {}
        return {int(key): str(job_id) for key, job_id in folded.items() if key.isascii() and key.isdigit()}

    def read_plan(self) -> Plan:
        """The frozen plan of the run. Raises ``NotFoundError`` where the directory is no run, ``StoreError``."""
        data = read_json(self.plan)
        if data is None or not isinstance(data.get("spec"), dict):
            raise NotFoundError(f"{self.path} is not a run directory: {self.plan.name} is missing or unreadable")
        try:
            spec = spec_from_dict(data["spec"])
        except (TypeError, ValueError) as exc:
            raise StoreError(f"{self.plan} is damaged: {exc}") from exc
        return Plan(str(data.get("run_id", self.run_id)), spec, data)


@dataclass(frozen=True, slots=True)
class Plan:
    """What was fixed at submission: the spec, and facts about who submitted from where (``data``)."""

    run_id: str
    spec: Spec
    data: dict[str, Any]

    @property
    def array(self) -> ArrayTask | None:
        """Which task of an array the run is; None for any other run."""
        return array_task_from_dict(self.data.get("array"))

    def job_of(self, submitted: JobId) -> JobId:
        """The run's job in what sbatch answered: of an array it is one task."""
        return JobId(submitted.base, self.array.task) if self.array is not None else submitted


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """One attempt: who owns it, how it ended, what was decided."""

    path: Path
    number: int

    @property
    def owner(self) -> Path:
        return self.path / "owner.json"

    @property
    def decision(self) -> Path:
        return self.path / "decision.json"

    @property
    def nodes(self) -> Path:
        return self.path / "nodes"

    @property
    def stop_file(self) -> Path:
        """Exists once this attempt's training was asked to save and leave: ``SLURMTRAIN_STOP_FILE``."""
        return self.path / "stop"

    def launch(self, number: int) -> Path:
        return self.path / "launches" / str(number)

    def launch_exit(self, number: int) -> Path:
        """How that launch ended, from the moment in which it did."""
        return self.launch(number) / "exit.json"

    def read_owner(self) -> dict[str, Any] | None:
        return read_json(self.owner)

    def read_decision(self) -> dict[str, Any] | None:
        return read_json(self.decision)

    def publish_decision(self, decision: dict[str, Any]) -> bool:
        """Decide, once: True if this call decided, False if somebody had. Raises ``StoreError``: then nobody acts."""
        set_damaged_aside(self.decision)
        return publish_once(self.decision, to_json(decision))


def find_node_logs(launch_folder: Path) -> list[Path]:
    """The logs of a launch's nodes, in their order; none where all wrote into the job's log. Never raises."""
    try:
        names = [path.name for path in launch_folder.iterdir()]
    except OSError:
        return []
    found = sorted((number, name) for name in names if (number := number_of_node_log(name)) is not None)
    return [launch_folder / name for _, name in found]


def number_of_node_log(name: str) -> tuple[int, int] | None:
    """Component of the job, and node in it, both from 0: of ``node-3.log`` (0, 3), of ``node-1-3.log`` (1, 3)."""
    found = _NODE_LOG.fullmatch(name)
    return (int(found[1] or 0), int(found[2])) if found else None


def runs_of(store: Path) -> list[RunDir]:
    """All runs of a store, by name. An absent store has none."""
    folder = store / "runs"
    try:
        return [RunDir(p) for p in sorted(folder.iterdir()) if RUN_ID.fullmatch(p.name) and p.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise StoreError(f"cannot list the runs in {folder}: {exc.strerror or exc}") from exc
