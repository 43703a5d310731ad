"""A new job of the same run: where Slurm no longer has the old one, or a person lets a held run go on."""

from __future__ import annotations

import time

from slurmtrain.core.events import Submitted
from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.core.nodeset import join_nodes
from slurmtrain.errors import StoreError
from slurmtrain.ops.rescue import arm_rescue
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.publish import publish_once, read_json, to_json
from slurmtrain.store.rundir import RunDir


def resubmit(
    run: RunDir,
    slurm: SlurmClient,
    journal: JournalWriter,
    who: str,
    exclude: str | None = None,
    *,
    instead_of: str | None = None,
) -> JobId:
    """Hand the run's batch script to Slurm once more, as the next submission; the new job's id.

    ``submissions/<n>.pending`` is there before Slurm is asked, so that a lost reply is visible; the number is the
    script's first argument, and the first job that claims it is the only one that trains. So a number whose reply was
    lost is used again: whichever job of it starts first, trains. ``exclude`` is joined with the user's own list, which
    sbatch's option would replace. ``instead_of`` is the job that the new one replaces: whoever replaces it uses the
    same number, so that two watchers make one job; where somebody has done it already, that job is returned.
    """
    number = _next_submission(run, instead_of)
    if (made := _find_first(run, number)) is not None:
        return made
    plan = run.read_plan()
    own = plan.spec.resources.exclude or ""
    options = [f"--exclude={join_nodes(own, exclude)}"] if exclude else []
    job_id = plan.job_of(slurm.submit(run.batch_script, options=options, arguments=[str(number)]))
    claim = {"job_id": str(job_id), "claimed_by": who, "at": time.time()}
    if not publish_once(run.submission(number), to_json(claim)):
        first = _find_first(run, number)
        if first is not None and first != job_id:  # another watcher was faster: the gate would turn ours away
            slurm.cancel(job_id)
            return first
    attempt = max((a.number for a in run.read_attempts()), default=-1)
    journal.append(
        Submitted(at=time.time(), who=who, attempt=attempt, submission=number, job_id=str(job_id)), sync=True
    )
    arm_rescue(run, plan.spec, job_id, slurm)
    return job_id


def _find_first(run: RunDir, number: int) -> JobId | None:
    """The job that a submission belongs to."""
    try:
        return parse_job_id(str((read_json(run.submission(number)) or {}).get("job_id", "")))
    except ValueError:
        return None


def _next_submission(run: RunDir, instead_of: str | None) -> int:
    known = run.read_submissions()
    replaced = [number for number, job_id in known.items() if job_id == instead_of]
    number = max(replaced) + 1 if replaced else 0
    while not replaced and number in known:
        number += 1
    if number in known:
        return number
    try:
        run.submissions.mkdir(mode=0o755, parents=True, exist_ok=True)
        run.submission(number).with_suffix(".pending").touch(mode=0o644)
    except OSError as exc:
        raise StoreError(f"cannot write {run.submissions}: {exc.strerror or exc}") from exc
    return number
