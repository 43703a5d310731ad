"""The rescue job: with ``rescue: true`` Slurm itself starts somebody who looks when the run's job has failed.

``afternotok`` (tried on 22.05): fires when the job ended FAILED, TIMEOUT… and also when it was cancelled; never by a
requeue, whoever asked for it; and a job that ends well leaves a dependency that cannot be fulfilled, for which
``--kill-on-invalid-dep`` removes the rescue job. It fires once: a job that is requeued from outside after its end needs
a new one.
"""

from __future__ import annotations

from slurmtrain.core.jobid import JobId
from slurmtrain.core.spec import Spec
from slurmtrain.errors import SlurmtrainError
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.rundir import RunDir


def arm_rescue(run: RunDir, spec: Spec, job_id: JobId, slurm: SlurmClient) -> str:
    """Submit the run's rescue job, if it wants one. Never raises; why it has none, in words, or ""."""
    if not spec.rescue:
        return ""
    try:
        slurm.submit(run.rescue_script, options=[f"--dependency=afternotok:{job_id}"])
    except SlurmtrainError as exc:
        return f"the run has no rescue job: {exc}"
    return ""
