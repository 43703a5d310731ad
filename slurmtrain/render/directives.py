"""The ``#SBATCH`` lines of a run: the only place that spells sbatch's options."""

from __future__ import annotations

from slurmtrain.core.spec import Component, Resources, Spec, warning_lead_s
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
    lines += [_further(option) for option in asked.sbatch_options]
    for component in spec.components:
        lines += ["hetjob", *_component_directives(spec, component)]
    return lines


def _component_directives(spec: Spec, component: Component) -> list[str]:
    """A further component. The batch script, its log and Slurm's warning to it belong to the first."""
    asked = spec.resources
    given: list[tuple[str, object]] = [
        ("job-name", spec.name),
        ("nodes", component.nodes),
        ("ntasks-per-node", slurm_tasks_per_node(spec, component)),
        ("cpus-per-task", slurm_cpus_per_task(spec, component)),
        ("gpus-per-node", component.gpus_per_node or None),
        ("gres", component.gres),
        ("mem", component.memory),
        ("time", asked.time_limit),
        ("partition", component.partition or asked.partition),
        ("account", asked.account),
        ("qos", component.qos or asked.qos),
        ("reservation", component.reservation or asked.reservation),
        ("constraint", component.constraint),
        ("nodelist", component.nodelist),
        ("exclude", asked.exclude),
    ]
    lines = [f"--{name}={quote_directive(str(value))}" for name, value in given if value is not None]
    return [*lines, "--requeue", *(["--exclusive"] if component.exclusive else [])]


def _placement(asked: Resources) -> list[tuple[str, object]]:
    names = ("partition", "account", "qos", "reservation", "constraint", "nodelist", "exclude")
    return [(name, getattr(asked, name)) for name in names]


def slurm_tasks_per_node(spec: Spec, part: Resources | Component | None = None) -> int:
    """Tasks that Slurm starts on each node: one for torchrun, which starts the ranks itself."""
    return 1 if spec.launcher == "torchrun" else (part or spec.resources).tasks_per_node


def slurm_cpus_per_task(spec: Spec, part: Resources | Component | None = None) -> int | None:
    """CPUs of each of Slurm's tasks; ``cpus_per_task`` of the spec counts for each rank."""
    asked = part or spec.resources
    if asked.cpus_per_task is None or spec.launcher != "torchrun":
        return asked.cpus_per_task
    return asked.cpus_per_task * asked.tasks_per_node


def _further(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}={quote_directive(value)}" if equals and value else name
