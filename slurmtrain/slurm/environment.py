"""Which of our environment's variables Slurm's commands may see."""

from __future__ import annotations

from collections.abc import Mapping

# Where Slurm's configuration and credentials are: without these a command on a compute node may find no cluster.
KEPT = frozenset(
    {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET", "SLURM_SACK_KEY", "SLURM_SACK_JWKS"}
)
# Inside a job SLURM_JOB_ID, SLURM_NTASKS… are input options of srun and sbatch, and a user's SQUEUE_FORMAT or
# SLURM_CLUSTERS changes what the others print.
_OPTION_PREFIXES = (
    "SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_", "SPRIO_",
)  # fmt: skip


def scrub(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without the variables that Slurm's commands read as options."""
    return {name: value for name, value in environ.items() if name in KEPT or not name.startswith(_OPTION_PREFIXES)}


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For commands whose output is parsed: plain English, times as seconds since 1970.

    Never for sbatch, which hands its environment to the job.
    """
    return {**scrub(environ), "LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}


def beside_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For an srun inside the job whose step has a shape of its own beside the training's."""
    return {
        name: value
        for name, value in environ.items()
        if name != "SLURM_NTASKS" and not name.startswith("SLURM_CPU_BIND")
    }


def submit_environment(environ: Mapping[str, str], added: Mapping[str, str] | None) -> dict[str, str]:
    """For sbatch: what the job inherits."""
    return {**scrub(environ), **(added or {})}
