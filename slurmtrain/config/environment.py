"""What the environment of ``submit`` says, and what of it a job may inherit. Pure: takes the environment as a value."""

from __future__ import annotations

from collections.abc import Mapping as MappingType

from slurmtrain.config.nodes import Mapping, Place, Scalar, put

HONOURED: MappingType[str, str] = {
    "SBATCH_ACCOUNT": "resources.account",
    "SBATCH_PARTITION": "resources.partition",
    "SBATCH_QOS": "resources.qos",
    "SBATCH_RESERVATION": "resources.reservation",
}
# Variables of sbatch that a person may have set with intent; slurmtrain asks for the same in the job file.
_NOT_USED: MappingType[str, str] = {
    "SBATCH_TIMELIMIT": "resources.time_limit",
    "SBATCH_CONSTRAINT": "resources.constraint",
    "SBATCH_GRES": "resources.gres",
    "SBATCH_GPUS_PER_NODE": "resources.gpus_per_node",
    "SBATCH_MEM_PER_NODE": "resources.memory",
    "SBATCH_EXCLUSIVE": "resources.exclusive",
    "SBATCH_JOB_NAME": "name",
    "SBATCH_MEM_PER_CPU": "resources.sbatch_options",
    "SBATCH_GPUS": "resources.sbatch_options",
    "SBATCH_HINT": "resources.sbatch_options",
    "SBATCH_DISTRIBUTION": "resources.sbatch_options",
    "SBATCH_WCKEY": "resources.sbatch_options",
    "SBATCH_SIGNAL": "stop.warning_s and stop.signal",
    "SBATCH_CLUSTERS": "another login node",
}
# Facts of the job that submit was called in; a new job has its own.
_OF_THE_OUTER_JOB = frozenset(
    {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
        "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL",
    }
)  # fmt: skip
_OUTER_PREFIXES = ("PMI_", "PMIX_", "PALS_", "OMPI_", "TORCHELASTIC_")
_KEPT_OF_OURS = frozenset({"SLURMTRAIN_STORE", "SLURMTRAIN_PATH"})


def is_inside_job(environ: MappingType[str, str]) -> bool:
    """Whether we are called from inside a Slurm job, whose variables describe that job and not the new one."""
    return bool(environ.get("SLURM_JOB_ID"))


def environment_layer(environ: MappingType[str, str]) -> Mapping:
    """The values that ``SBATCH_*`` gives outside a job; nothing inside one."""
    tree = Mapping({}, Place("environment"))
    if not is_inside_job(environ):
        for name, path in HONOURED.items():
            if environ.get(name):
                put(tree, path, Scalar(environ[name], Place(f"environment {name}")))
    return tree


def unused_variables(environ: MappingType[str, str]) -> list[str]:
    """Notes on variables that sbatch would have obeyed and slurmtrain does not."""
    if is_inside_job(environ):
        return []
    return [
        f"{name} is set in the environment but not used; use {instead} instead"
        for name, instead in _NOT_USED.items()
        if environ.get(name)
    ]


def submission_environment(environ: MappingType[str, str]) -> dict[str, str]:
    """What the job inherits: everything but slurmtrain's own variables and, inside a job, the facts of that job.

    Variables that Slurm's commands read as options are removed by the Slurm client.
    """
    inside = is_inside_job(environ)

    def is_wanted(name: str) -> bool:
        if name.startswith("SLURMTRAIN_"):
            return name in _KEPT_OF_OURS
        return not (inside and (name in _OF_THE_OUTER_JOB or name.startswith(_OUTER_PREFIXES)))

    return {name: value for name, value in environ.items() if is_wanted(name)}
