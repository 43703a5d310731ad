"""Which keys a job file may have, how each is read, and what to suggest for one that does not exist.

The table mirrors ``core.spec`` (a test compares the two), so it is the one list of keys.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from typing import Any, TypeAlias

from slurmtrain.config import parsers as p
from slurmtrain.config import retry, shipping
from slurmtrain.config.components import read_components
from slurmtrain.config.nodes import Mapping, Node, Place, Scalar, describe, shown
from slurmtrain.config.problems import Problems, closest

Group: TypeAlias = "dict[str, p.Parser | Group]"

VARIABLES = "environment.variables"
CAUSES = "retry.causes"
_SHORT = {"ship": "url"}  # ``ship: s3://…`` stands for ``ship: {url: s3://…}``

_RESOURCES: Group = {
    "nodes": p.integer(1, 100_000),
    "tasks_per_node": p.integer(1, 4096),
    "cpus_per_task": p.integer(1, 65_535),
    "gpus_per_node": p.integer(0, 4096),
    "gres": p.gres,
    "memory": p.memory,
    "time_limit": p.time_limit,
    "partition": p.slurm_word("a partition, or several with commas"),
    "account": p.slurm_word("an account"),
    "qos": p.slurm_word("a quality of service"),
    "reservation": p.slurm_word("a reservation"),
    "constraint": p.text("a constraint like 'a100&nvlink'"),
    "nodelist": p.slurm_word("a list of nodes like n[1-4,7]"),
    "exclude": p.slurm_word("a list of nodes like n[1-4,7]"),
    "exclusive": p.boolean,
    "sbatch_options": p.long_options("sbatch"),
}
_STAGE: Group = {
    "run": p.setup_lines,
    "on": p.choice("first_node", "each_node"),
    "time_limit_s": p.seconds(1, 30 * 86400),
}
SCHEMA: Group = {
    "command": p.arguments("the command and its arguments as a list, like [python, train.py, --lr, 1e-4]"),
    "name": p.text("a name", limit=200),
    "launcher": p.choice("srun", "torchrun"),
    "workdir": p.text("a directory", limit=4000),
    "success": p.choice("all", "primary"),
    "resources": _RESOURCES,
    "environment": {"setup": p.setup_lines, "variables": p.variable_value},
    "stop": {
        "signal": p.signal_name,
        "warning_s": p.seconds(1, 65_535),  # sbatch --signal takes no more
        "grace_s": p.seconds(0, 3600),
        "folder": p.text("a folder that colleagues can write", limit=4000),
        "on_drain": p.choice("continue", "ignore"),
        "on_maintenance": p.choice("continue", "ignore"),
        "maintenance_lead_s": p.seconds(1, 7 * 86400),
        "node_look_s": p.seconds(0, 86400),
    },
    "checkpoint": {
        "dir": p.text("a directory", limit=4000),
        "pattern": p.text("a glob pattern"),
        "check": p.boolean,
        "max_age_s": p.seconds(0, 365 * 86400),
        "marker": p.text("a file name", limit=200),
    },
    "hang": {
        "timeout_s": p.seconds(0, 30 * 86400),
        "startup_s": p.seconds(0, 30 * 86400),
        "step_timeout_s": p.seconds(0, 30 * 86400),
    },
    "logs": {"per_node": p.boolean},
    "scene": {
        "enabled": p.boolean,
        "budget_s": p.seconds(1, 3600),
        "disable": p.arguments("names of collectors as a list, like [40-nvidia-smi]"),
        "keep_first": p.integer(0, 10_000),
        "keep_last": p.integer(1, 10_000),
    },
    "retry": {
        "in_place": p.integer(0, 10_000),
        "requeues": p.integer(0, 10_000),
        "infrastructure": p.integer(0, 10_000),
        "attempts": p.integer(1, 100_000),
        "delay_s": p.seconds(0, 7 * 86400),
        "exclude_nodes": p.boolean,
        "exclude_for_s": p.seconds(0, 365 * 86400),
        "breaker_runs": p.integer(0, 10_000),
        "breaker_s": p.seconds(1, 86400),
        "max_gpu_hours": retry.hours,
        "deadline": retry.deadline,
        "causes": retry.causes,
        "clean_up_s": p.seconds(2, 600),
    },
    "stage_in": {**_STAGE},
    "stage_out": {**_STAGE, "after_failure": p.boolean},
    "core_dumps": {
        "enabled": p.boolean,
        "ranks": p.choice("first", "all"),
        "size_limit": p.memory,
        "cuda": p.boolean,
        "keep": p.integer(1, 1000),
    },
    "container": {"save": p.boolean, "size_limit": p.memory},
    "ship": {
        "url": shipping.url,
        "what": shipping.what,
        "checkpoints": p.integer(1, 1000),
        "rate": shipping.rate,
        "every_s": p.seconds(5, 86400),
        "linger_s": p.seconds(0, 300),
        "endpoint": shipping.endpoint,
        "profile": p.text("a profile of ~/.aws/config", limit=200),
        "keep_days": p.integer(7, 100_000),
        "keep_runs": p.integer(1, 1_000_000),
    },
    "companion": p.boolean,
    "components": read_components(_RESOURCES),
    "array": p.array_tasks,
    "rescue": p.boolean,
    "rescue_options": p.long_options("sbatch"),
    "srun_options": p.long_options("srun"),
    "torchrun_options": p.arguments("a list of torchrun options"),
}

# Words of sbatch and of other tools, and where they belong here.
_ELSEWHERE: MappingType[str, str] = {
    "job_name": "name",
    "cmd": "command",
    "script": "command",
    "args": "command",
    "entrypoint": "command",
    "chdir": "workdir",
    "cwd": "workdir",
    "working_dir": "workdir",
    "time": "resources.time_limit",
    "timeout": "resources.time_limit",
    "walltime": "resources.time_limit",
    "mem": "resources.memory",
    "mem_per_node": "resources.memory",
    "gpus": "resources.gpus_per_node",
    "gpu": "resources.gpus_per_node",
    "cpus": "resources.cpus_per_task",
    "ntasks": "resources.tasks_per_node",
    "ntasks_per_node": "resources.tasks_per_node",
    "nproc_per_node": "resources.tasks_per_node",
    "tasks": "resources.tasks_per_node",
    "num_nodes": "resources.nodes",
    "env": VARIABLES,
    "modules": "environment.setup",
    "module": "environment.setup",
    "max_retries": "retry.requeues",
    "retries": "retry.requeues",
    "max_restarts": "retry.in_place",
    "checkpoint_dir": "checkpoint.dir",
    "signal": "stop.signal",
    "sbatch": "resources.sbatch_options",
    "slurm": "resources",
}


@dataclass(frozen=True, slots=True)
class Value:
    """One typed value of a layer and where it was written."""

    value: Any
    place: Place


Layer: TypeAlias = "dict[str, Value | None]"  # key path → value; None: written as null, so back to the default


def read_layer(node: Node, problems: Problems) -> Layer:
    """Every value of one file or one source, typed; what is wrong is added to ``problems``."""
    layer: Layer = {}
    if not isinstance(node, Mapping):
        problems.add(node.place, "", f"expected keys like 'command:' and 'resources:', got {describe(node)}")
        return layer
    _read_group(node, SCHEMA, "", layer, problems)
    return layer


def _read_group(node: Mapping, group: Group, prefix: str, layer: Layer, problems: Problems) -> None:
    for key, child in node.entries.items():
        path = f"{prefix}{key}"
        rule = group.get(key)
        if rule is None:
            problems.add(node.keys.get(key, child.place), _shown_path(path), unknown_key(key, prefix, group))
        elif path == VARIABLES:
            _read_variables(child, layer, problems)
        elif isinstance(rule, dict):
            short = rule.get(_SHORT.get(path, "")) if isinstance(child, Scalar) and not child.is_null else None
            if short is not None and not isinstance(short, dict):
                _read_value(short, child, f"{path}.{_SHORT[path]}", layer, problems)
            elif isinstance(child, Mapping):
                _read_group(child, rule, f"{path}.", layer, problems)
            elif describe(child) != "nothing":
                names = ", ".join(list(rule)[:3])
                problems.add(child.place, path, f"expected keys ({names}, …), got {describe(child)}")
        elif describe(child) == "nothing":
            layer[path] = None
        else:
            _read_value(rule, child, path, layer, problems)


def _read_value(rule: p.Parser, node: Node, path: str, layer: Layer, problems: Problems) -> None:
    try:
        layer[path] = Value(rule(node), node.place)
    except ValueError as exc:
        problems.add(node.place, path, str(exc))


def _read_variables(node: Node, layer: Layer, problems: Problems) -> None:
    if describe(node) == "nothing":
        return
    if not isinstance(node, Mapping):
        problems.add(node.place, VARIABLES, f"expected NAME: value for each variable, got {describe(node)}")
        return
    for name, child in node.entries.items():
        path = f"{VARIABLES}.{name}"
        try:
            p.variables_key(name)
        except ValueError as exc:
            problems.add(node.keys.get(name, child.place), VARIABLES, str(exc))
        else:
            _read_value(p.variable_value, child, path, layer, problems)


def unknown_key(key: str, prefix: str, group: Group) -> str:
    """The sentence for a key that does not exist, with what was probably meant."""
    normal = key.strip().lower().replace("-", "_")
    near = closest(key, group)
    if near and near == normal:
        return f"unknown key; did you mean {near!r}?"
    target = _ELSEWHERE.get(normal)
    if target and target != f"{prefix}{key}":
        return f"unknown key; did you mean '{target}'?"
    paths = {path.rpartition(".")[2]: path for path in all_keys()}
    if normal in paths:
        return f"unknown key here; it belongs to '{paths[normal]}'"
    if near:
        return f"unknown key; did you mean {near!r}?"
    elsewhere = closest(key, paths)
    if elsewhere:
        return f"unknown key; did you mean '{paths[elsewhere]}'?"
    return f"unknown key; expected one of {', '.join(group)}"


def all_keys(group: Group | None = None, prefix: str = "") -> list[str]:
    """Every key path that holds a value."""
    paths: list[str] = []
    for key, rule in (SCHEMA if group is None else group).items():
        paths += all_keys(rule, f"{prefix}{key}.") if isinstance(rule, dict) else [f"{prefix}{key}"]
    return paths


def _shown_path(path: str) -> str:
    return path if path.isprintable() and len(path) <= 80 else shown(path, 80)
