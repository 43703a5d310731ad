"""The ``#SBATCH`` lines of a run: the only place that spells sbatch's options."""

from __future__ import annotations

from slurmtrain.core.spec import Resources, Spec, warning_lead_s
from slurmtrain.render.quoting import escape_file_pattern, quote_directive


def build_directives(spec: Spec, run_dir: str, *, per_task: bool = False) -> list[str]:
    """Options in the order a person would look for them; ``run_dir`` is absolute.

    ``per_task``: the script is one for all tasks of an array, whose run directories are ``<run_dir>-<task>``.
    """
    asked = spec.resources
    log_dir = escape_file_pattern(run_dir) + ("-%a/logs" if per_task else "/logs")
    given: list[tuple[str, object]] = [
        ("job-name", spec.name),
        ("array", spec.array),
        ("nodes", asked.nodes),
        ("ntasks-per-node", slurm_tasks_per_node(spec)),
        ("cpus-per-task", slurm_cpus_per_task(spec)),
        ("gpus-per-node", asked.gpus_per_node or None),
        ("gres", asked.gres),
        ("mem", asked.memory),
        ("time", asked.time_limit),
        *_placement(asked),
        ("chdir", spec.workdir),
        ("output", f"{log_dir}/train-{'%A_%a' if spec.array else '%j'}.log"),
        ("open-mode", "append"),
        ("signal", f"B:USR2@{warning_lead_s(spec)}"),
    ]
    lines = [f"--{name}={quote_directive(str(value))}" for name, value in given if value is not None]
    lines.append("--requeue")
    if asked.exclusive:
        lines.append("--exclusive")
    return [*lines, *(_further(option) for option in asked.sbatch_options)]


def _placement(asked: Resources) -> list[tuple[str, object]]:
    names = ("partition", "account", "qos", "reservation", "constraint", "nodelist", "exclude")
    return [(name, getattr(asked, name)) for name in names]


def slurm_tasks_per_node(spec: Spec) -> int:
    """Tasks that Slurm starts on each node: one for torchrun, which starts the ranks itself."""
    return 1 if spec.launcher == "torchrun" else spec.resources.tasks_per_node


def slurm_cpus_per_task(spec: Spec) -> int | None:
    """CPUs of each of Slurm's tasks; ``cpus_per_task`` of the spec counts for each rank."""
    cpus = spec.resources.cpus_per_task
    if cpus is None or spec.launcher != "torchrun":
        return cpus
    return cpus * spec.resources.tasks_per_node


def _further(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}={quote_directive(value)}" if equals and value else name
