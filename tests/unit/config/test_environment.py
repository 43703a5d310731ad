"""What a job inherits from the shell, or the job, that submits it."""

from __future__ import annotations

from slurmtrain.config.environment import submission_environment

MINE = {
    "PATH": "/bin",
    "HOME": "/home/a",
    "MASTER_ADDR": "n1",
    "RANK": "3",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "PMIX_RANK": "1",
}


def test_outside_a_job_everything_is_inherited_but_our_own_variables() -> None:
    env = {**MINE, "SLURMTRAIN_RUN_DIR": "/x", "SLURMTRAIN_STORE": "/s", "SLURMTRAIN_STOP_FILE": "/y"}
    assert submission_environment(env) == {**MINE, "SLURMTRAIN_STORE": "/s"}


def test_inside_a_job_the_facts_of_that_job_are_not() -> None:
    env = {**MINE, "SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "x"}
    assert submission_environment(env) == {"PATH": "/bin", "HOME": "/home/a", "SLURM_JOB_ID": "7"}
