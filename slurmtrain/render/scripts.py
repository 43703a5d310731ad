"""``job.sbatch`` and ``launch.sh``: Python computes the values, templates place them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2.sandbox import SandboxedEnvironment

from slurmtrain.core.array import ArrayTask
from slurmtrain.core.spec import Component, Resources, Spec, all_components, has_node_logs
from slurmtrain.render.directives import build_directives, slurm_cpus_per_task, slurm_tasks_per_node
from slurmtrain.render.quoting import quote_argv, quote_sh
from slurmtrain.render.templates import open_templates, render_template

_PYTHON = re.compile(r"python[0-9.]*", re.ASCII)
# Signals that srun hands on to its tasks; TERM, INT and QUIT make it end them (man srun, SIGNALS).
_HANDED_ON = frozenset({"USR1", "USR2", "HUP", "URG", "WINCH"})


@dataclass(frozen=True, slots=True)
class Scripts:
    """The two scripts of a run."""

    batch: str
    launch: str
    stages: Mapping[str, str] = field(default_factory=dict)  # stage_in, stage_out: those that the run has


def render_scripts(
    spec: Spec,
    *,
    run_id: str,
    run_dir: Path,
    agent_python: str,
    bundled: Path,
    overrides: Sequence[Path] = (),
    array: ArrayTask | None = None,
) -> Scripts:
    """Both scripts for a run directory; ``array`` says which task of an array the run is.

    ``bundled`` is the folder of bundled templates, ``overrides`` are folders that come before it; a template there may
    extend ``bundled/…``. Raises ``SpecError`` where a template cannot be rendered.
    """
    environment = _environment(bundled, tuple(overrides))
    values = _values(spec, run_id, run_dir, agent_python) | {
        "checkpoint_dir": str(run_dir / spec.checkpoint.dir),
        "array": array,
    }
    return Scripts(
        batch=render_template(environment, "train.sbatch.j2", values),
        launch=render_template(environment, f"launch/{spec.launcher}.sh.j2", values),
        stages={
            name: render_template(environment, "stage.sh.j2", values | {"stage": name, "staging": stage})
            for name, stage in (("stage_in", spec.stage_in), ("stage_out", spec.stage_out))
            if stage.run
        },
    )


def render_array_script(
    spec: Spec, *, group_id: str, runs: Path, agent_python: str, bundled: Path, overrides: Sequence[Path] = ()
) -> str:
    """The batch script that all tasks of an array share: each finds its run directory, ``<runs>-<task>``."""
    values = _values(spec, group_id, runs, agent_python, per_task=True)
    return render_template(_environment(bundled, tuple(overrides)), "train.sbatch.j2", values)


def _values(spec: Spec, run_id: str, run_dir: Path, agent_python: str, *, per_task: bool = False) -> dict[str, Any]:
    return {
        **_launch_values(spec),
        "run_id": run_id,
        "run_dir": str(run_dir),
        "per_task": per_task,
        "agent_python": agent_python,
        "directives": build_directives(spec, str(run_dir), per_task=per_task),
    }


def _launch_values(spec: Spec) -> dict[str, Any]:
    torchrun, command = split_torchrun(spec) if spec.launcher == "torchrun" else ((), spec.command)
    handed_on = spec.launcher == "srun" and spec.stop.signal in _HANDED_ON
    return {
        "spec": spec,
        "launcher": spec.launcher,
        "nodes": spec.resources.nodes,
        "tasks_per_node": spec.resources.tasks_per_node,
        "tasks": spec.resources.nodes * slurm_tasks_per_node(spec),
        "srun_tasks_per_node": slurm_tasks_per_node(spec),
        "srun_cpus_per_task": slurm_cpus_per_task(spec),
        "components": [_component_values(spec, number, part) for number, part in enumerate(all_components(spec))][1:],
        "first": _component_values(spec, 0, spec.resources),
        "all_nodes": sum(part.nodes for part in all_components(spec)),
        "srun_options": spec.srun_options,
        "torchrun_options": spec.torchrun_options,
        "torchrun": torchrun,
        "command": command,
        "variables": spec.environment.variables,
        "setup": spec.environment.setup,
        "workdir": spec.workdir or ".",
        "primary": spec.success == "primary",
        "node_logs": has_node_logs(spec),
        "named_container": spec.container.save and _has_pyxis_image(spec),
        "core_kib": _kib(spec.core_dumps.size_limit) if spec.core_dumps.enabled else None,
        "stop_signal": spec.stop.signal if handed_on else "none",
    }


def _has_pyxis_image(spec: Spec) -> bool:
    """Whether pyxis starts a container that it would remove: one that the user has named stays."""
    options = [option.partition("=")[0] for option in spec.srun_options]
    return "--container-image" in options and "--container-name" not in options


def _kib(size: str) -> int:
    """A size as ``sbatch --mem`` takes it, MiB where it has no unit."""
    number, unit = re.fullmatch(r"(\d+)([kmgt]?)b?", size.lower(), re.ASCII).groups()  # type: ignore[union-attr]
    return int(number) << {"k": 0, "m": 10, "": 10, "g": 20, "t": 30}[unit]


def _component_values(spec: Spec, number: int, part: Resources | Component) -> dict[str, Any]:
    """A component of a heterogeneous job; ``shape`` are the options with which srun places its tasks."""
    tasks, cpus = slurm_tasks_per_node(spec, part), slurm_cpus_per_task(spec, part)
    shape = [f"--het-group={number}", f"--nodes={part.nodes}", f"--ntasks={part.nodes * tasks}"]
    shape += [f"--ntasks-per-node={tasks}", *([f"--cpus-per-task={cpus}"] if cpus else [])]
    local = "" if spec.launcher == "torchrun" else f",LOCAL_WORLD_SIZE={part.tasks_per_node}"
    shape.append(f"--export=ALL{local}")
    return {"nodes": part.nodes, "tasks_per_node": part.tasks_per_node, "shape": " ".join(shape)}


def split_torchrun(spec: Spec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How torchrun is called, and what follows its options: ``python -m pkg`` keeps the interpreter that was named."""
    program, *rest = spec.command
    if _PYTHON.fullmatch(Path(program).name):
        return (program, "-m", "torch.distributed.run"), tuple(rest)
    return ("torchrun",), spec.command


@lru_cache(maxsize=2)  # the runs of an array share it, and the templates it has read
def _environment(bundled: Path, overrides: tuple[Path, ...]) -> SandboxedEnvironment:
    environment = open_templates(bundled, overrides, autoescape=False)  # bash, not HTML: values go through sh or argv
    environment.filters["sh"] = quote_sh
    environment.filters["argv"] = quote_argv
    return environment
