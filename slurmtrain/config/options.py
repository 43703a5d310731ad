"""Options of sbatch, srun and torchrun that a job file may not pass on: slurmtrain sets them, or they break it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_SBATCH: Mapping[str, str] = {
    "job-name": "use the key name",
    "nodes": "use resources.nodes",
    "ntasks": "use resources.nodes and resources.tasks_per_node",
    "ntasks-per-node": "use resources.tasks_per_node",
    "tasks-per-node": "use resources.tasks_per_node",
    "cpus-per-task": "use resources.cpus_per_task",
    "gpus-per-node": "use resources.gpus_per_node",
    "gres": "use resources.gres",
    "mem": "use resources.memory",
    "time": "use resources.time_limit",
    "partition": "use resources.partition",
    "account": "use resources.account",
    "qos": "use resources.qos",
    "reservation": "use resources.reservation",
    "constraint": "use resources.constraint",
    "nodelist": "use resources.nodelist",
    "nodefile": "use resources.nodelist",
    "exclude": "use resources.exclude",
    "chdir": "use the key workdir",
    "output": "the log is logs/train-<job id>.log in the run directory, so that nothing is lost at a requeue",
    "error": "stderr goes into the log beside stdout, so that messages keep their order",
    "input": "a training that is started again cannot read its standard input",
    "open-mode": "the log is always appended to, so that a requeue keeps it",
    "requeue": "slurmtrain always submits with --requeue; use the keys under retry to limit it",
    "no-requeue": "nothing could be recovered then; set retry.requeues and retry.infrastructure to 0 instead",
    "signal": "use stop.warning_s and stop.signal",
    "wrap": "use the key command",
    "array": "use the key array, or submit --array: each task becomes a run of its own",
    "parsable": "use slurmtrain submit --json",
    "test-only": "use slurmtrain submit --dry-run",
    "wait": "use slurmtrain wait RUN",
    "clusters": "one slurmtrain looks after one cluster; submit on a login node of the other one",
    "cluster": "one slurmtrain looks after one cluster; submit on a login node of the other one",
    "uid": "a run belongs to the user who submits it",
    "gid": "a run belongs to the user who submits it",
    "export-file": "use environment.variables",
    "container": "the batch script must stay outside the container to reach Slurm; use srun_options",
    "container-id": "the batch script must stay outside the container to reach Slurm; use srun_options",
    "container-image": "the batch script must stay outside the container to reach Slurm; use srun_options",
    "container-mounts": "use srun_options, like --container-image",
    "container-name": "use srun_options, like --container-image",
    "container-save": "use srun_options, like --container-image",
    "container-workdir": "use srun_options, like --container-image",
    "container-env": "use srun_options, like --container-image",
    "help": "it would print a text and submit nothing",
    "usage": "it would print a text and submit nothing",
    "version": "it would print a text and submit nothing",
}

_SRUN: Mapping[str, str] = {
    "nodes": "use resources.nodes",
    "ntasks": "use resources.tasks_per_node",
    "ntasks-per-node": "use resources.tasks_per_node",
    "tasks-per-node": "use resources.tasks_per_node",
    "cpus-per-task": "use resources.cpus_per_task",
    "kill-on-bad-exit": "a launch always ends when one rank fails, or the others would wait for it",
    "label": "lines are always labelled, so that a failure can be told by rank",
    "output": "the output of all ranks goes into the run's log",
    "error": "the output of all ranks goes into the run's log",
    "input": "a training that is started again cannot read its standard input",
    "export": "use environment.variables",
    "chdir": "use the key workdir",
    "jobid": "the launch belongs to the run's own job",
    "job-name": "use the key name",
    "pty": "a terminal would garble the log",
    "multi-prog": "one command is run by all ranks",
    "het-group": "use the key components",
    "preserve-env": "the launch gives each rank the variables that fit it",
    "test-only": "nothing would run",
    "help": "it would print a text and run nothing",
    "usage": "it would print a text and run nothing",
    "version": "it would print a text and run nothing",
}

_TORCHRUN: Mapping[str, str] = {
    "nnodes": "use resources.nodes",
    "nproc-per-node": "use resources.tasks_per_node",
    "node-rank": "it is taken from Slurm on each node",
    "rdzv-backend": "slurmtrain arranges the meeting of the nodes, anew for each launch",
    "rdzv-endpoint": "slurmtrain arranges the meeting of the nodes, anew for each launch",
    "rdzv-id": "slurmtrain arranges the meeting of the nodes, anew for each launch",
    "master-addr": "slurmtrain arranges the meeting of the nodes, anew for each launch",
    "master-port": "slurmtrain arranges the meeting of the nodes, anew for each launch",
    "standalone": "slurmtrain arranges the meeting of the nodes, anew for each launch",
    "max-restarts": "slurmtrain restarts the launch itself, by its cause; see the keys under retry",
}

# Full names that begin like a refused option's abbreviation and are options of their own.
_WHOLE = frozenset({"export", "exclusive"})


def refusal(option: str, table: Mapping[str, str]) -> str | None:
    """Why this option may not be passed on; None where it may. getopt and argparse take abbreviations too."""
    name = option.split("=", 1)[0].removeprefix("--").replace("_", "-")
    if name in table:
        return f"--{name} is set by slurmtrain: {table[name]}"
    if name in _WHOLE:
        return None
    for full, reason in table.items():
        if full.startswith(name):
            return f"--{name} is short for --{full}, which is set by slurmtrain: {reason}"
    return None


def refuse_sbatch(option: str) -> str | None:
    name, _, value = option.removeprefix("--").partition("=")
    if name == "export" and value != "ALL":
        return "--export would hide from the job what slurmtrain hands to it; use environment.variables"
    if name == "exclusive" and not value:
        return "--exclusive is set by slurmtrain: use resources.exclusive"
    return refusal(option, _SBATCH)


def refuse_srun(option: str) -> str | None:
    return refusal(option, _SRUN)


def refuse_torchrun(option: str) -> str | None:
    return refusal(option, _TORCHRUN)


REFUSALS: Mapping[str, Callable[[str], str | None]] = {
    "resources.sbatch_options": refuse_sbatch,
    "srun_options": refuse_srun,
    "torchrun_options": refuse_torchrun,
}
