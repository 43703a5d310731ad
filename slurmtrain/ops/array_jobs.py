"""Mending an array whose submitter died after sbatch's answer, before each of its runs had the number of its job.

A task that starts claims its submission itself; those that wait would be unknown to everybody until then.
"""

from __future__ import annotations

import os
import socket
import time

from slurmtrain.core.events import Submitted
from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.errors import NotFoundError
from slurmtrain.store.groups import GroupDir
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.publish import exists, publish_once, to_json


def record_missing_jobs(group: GroupDir) -> list[str]:
    """Ids of the runs that now know their job. Raises ``StoreError``."""
    try:
        base, tasks = parse_job_id(group.read_job_id()).base, group.read_tasks()
    except (ValueError, NotFoundError):
        return []
    mended = []
    for task in tasks:
        run = group.run(task)
        if not run.path.is_dir() or exists(run.submission(0)):
            continue
        job_id = str(JobId(base, task))
        if publish_once(run.submission(0), to_json({"job_id": job_id, "claimed_by": "watcher", "at": time.time()})):
            journal = JournalWriter(run.journal, f"watch-{socket.gethostname()}-{os.getpid()}")
            journal.append(Submitted(at=time.time(), who="watcher", submission=0, job_id=job_id), sync=True)
            mended.append(run.run_id)
    return mended
