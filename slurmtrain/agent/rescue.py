"""Inside the rescue job: look after one run as a watcher would, until it is decided or in Slurm's hands again."""

from __future__ import annotations

import os
import socket
import time

from slurmtrain.agent.say import say
from slurmtrain.core.decision import RunState
from slurmtrain.core.events import Acted
from slurmtrain.core.jobstate import is_terminal
from slurmtrain.core.run import Run, fold
from slurmtrain.errors import SlurmtrainError
from slurmtrain.ops.observe import observe
from slurmtrain.ops.recover import Care, find_job, look_after
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.journal import JournalWriter, read_journal
from slurmtrain.store.rundir import Plan, RunDir

_PATIENCE_S = 240.0  # of the five minutes that the job has; accounting may lag, slurmctld may restart
_PAUSE_S = 5.0


def run_rescue(run: RunDir, slurm: SlurmClient, patience_s: float = _PATIENCE_S) -> int:
    """Exit code 0 once somebody has decided, be it this job or another; 1 where time ran out.

    A journal that cannot be read may say that nothing is to be done: it is tried again, and nothing is done meanwhile.
    Raises ``SlurmtrainError`` where the run's directory cannot be read.
    """
    plan = run.read_plan()
    journal = JournalWriter(run.journal, f"rescue-{socket.gethostname()}-{os.getpid()}")
    deadline = time.monotonic() + patience_s
    while True:
        try:
            if _look(run, plan, slurm, journal):
                return 0
        except SlurmtrainError as exc:
            say(f"{exc}; trying again")
        if time.monotonic() >= deadline:
            say("nothing could be decided in the time that this job has; `slurmtrain watch` does")
            return 1
        time.sleep(_PAUSE_S)


def _look(run: RunDir, plan: Plan, slurm: SlurmClient, journal: JournalWriter) -> bool:
    """Look after the run once; True where it is decided, or in Slurm's hands again."""
    state = fold(read_journal(run.journal))
    job_id = find_job(run, state)
    if job_id is None or _is_settled(state):
        say("the run is settled: nothing to do")
        return True
    observation = observe(slurm, [job_id])
    journal.catch_up()
    events = look_after(Care(run, plan, state, job_id, observation, slurm, journal))
    for event in events:
        say(f"{event.kind.replace('_', ' ')} {getattr(event, 'detail', '') or ''}".strip())
    if any(isinstance(event, Acted) and event.accepted for event in events):
        return True
    record = observation.jobs.get(job_id)
    alive = record is not None and not is_terminal(record.state, requeue=record.requeue)
    after = fold(read_journal(run.journal))
    return alive or _is_settled(after) or find_job(run, after) != job_id


def _is_settled(state: Run) -> bool:
    return state.ended or state.state is RunState.HELD
