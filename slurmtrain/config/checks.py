"""What only the whole spec shows: values that contradict each other, and things worth a word before the job waits."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from slurmtrain.config.double import double_notes
from slurmtrain.config.nodes import Place, shown
from slurmtrain.config.options import REFUSALS
from slurmtrain.config.problems import Problems
from slurmtrain.core.array import parse_array
from slurmtrain.core.spec import Spec, parse_time_limit, warning_lead_s

PYTHON = re.compile(r"python[0-9.]*", re.ASCII)
_EARLY_S = 60  # Slurm looks every 30 s and sends when less than 30 s are missing (job_mgr.c, send_job_warn_signal)
_OURS_IN_RESCUE = frozenset(
    {
        "array",
        "dependency",
        "error",
        "job-name",
        "kill-on-invalid-dep",
        "nodes",
        "ntasks",
        "open-mode",
        "output",
        "wrap",
    }
)
Places = Mapping[str, Place]


def check_spec(spec: Spec, places: Places, problems: Problems, environ: Mapping[str, str]) -> list[str]:
    """Add what is impossible to ``problems``; return notes on what is possible but probably not meant."""
    _check_command(spec, places, problems)
    _check_resources(spec, places, problems)
    _check_options(spec, places, problems)
    _check_stop(spec, places, problems)
    _check_checkpoint(spec, places, problems)
    _check_array(spec, places, problems)
    _check_rescue(spec, places, problems)
    _check_stages(spec, places, problems)

    _check_components(spec, places, problems)
    if problems:
        return []
    return [*_time_notes(spec), *_command_notes(spec, environ), *_name_notes(spec), *double_notes(spec)]


def _check_command(spec: Spec, places: Places, problems: Problems) -> None:
    place = places.get("command")
    if problems.has("command"):
        return
    if not spec.command or not spec.command[0].strip():
        problems.add(place, "command", "missing: what should be run, like [python, train.py, --lr, 1e-4]")
        return
    program = Path(spec.command[0]).name
    if spec.launcher == "torchrun" and program in {"torchrun", "srun"}:
        problems.add(
            place,
            "command",
            f"with launcher: torchrun, {program} is started by slurmtrain; write what follows its options",
        )
    if spec.launcher == "torchrun" and PYTHON.fullmatch(program):
        if len(spec.command) < 2:
            problems.add(place, "command", "names no script to run after the interpreter")
        elif spec.command[1].startswith("-") and spec.command[1] != "-m":
            problems.add(
                place,
                "command",
                f"torchrun cannot pass {shown(spec.command[1])} to the interpreter; use environment.variables "
                "(PYTHONUNBUFFERED is set already)",
            )
    if spec.launcher == "srun" and spec.torchrun_options:
        problems.add(places.get("torchrun_options"), "torchrun_options", "only with launcher: torchrun")


def _check_resources(spec: Spec, places: Places, problems: Problems) -> None:
    asked = spec.resources
    if (
        asked.gpus_per_node is not None
        and asked.gres is not None
        and re.search(r"(?:^|,)(?:gres[:/])?gpu\b", asked.gres)
    ):
        problems.add(
            places.get("resources.gres"), "resources.gres", "asks for GPUs, and so does gpus_per_node; keep one of them"
        )
    if asked.memory is not None:
        for option in asked.sbatch_options:
            if option.startswith(("--mem-per-cpu", "--mem-per-gpu")):
                where = places.get("resources.sbatch_options")
                problems.add(
                    where, "resources.sbatch_options", f"{shown(option)} contradicts resources.memory; keep one of them"
                )


def _check_options(spec: Spec, places: Places, problems: Problems) -> None:
    given = {
        "resources.sbatch_options": spec.resources.sbatch_options,
        "srun_options": spec.srun_options,
        "torchrun_options": [option for option in spec.torchrun_options if option.startswith("--")],
    }
    for path, options in given.items():
        for option in options:
            reason = REFUSALS[path](option)
            if reason:
                problems.add(places.get(path), path, reason)


def _check_checkpoint(spec: Spec, places: Places, problems: Problems) -> None:
    """What matches is taken for a checkpoint and set aside when it is damaged: nothing outside of the folder may."""
    for key, value in (("pattern", spec.checkpoint.pattern), ("marker", spec.checkpoint.marker or "")):
        path = f"checkpoint.{key}"
        if value.startswith("/") or ".." in value.split("/"):
            problems.add(places.get(path), path, f"{shown(value)} leads out of checkpoint.dir: write a name below it")


def _check_stop(spec: Spec, places: Places, problems: Problems) -> None:
    folder = spec.stop.folder
    if folder is not None and not folder.startswith("/"):
        problems.add(places.get("stop.folder"), "stop.folder", f"{shown(folder)} is not an absolute path")
    limit = parse_time_limit(spec.resources.time_limit) if spec.resources.time_limit else None
    if limit is not None and spec.stop.warning_s is not None and spec.stop.warning_s >= limit:
        problems.add(
            places.get("stop.warning_s"),
            "stop.warning_s",
            f"{spec.stop.warning_s} s is not shorter than the time limit ({spec.resources.time_limit} is {limit} s)",
        )


def _check_array(spec: Spec, places: Places, problems: Problems) -> None:
    folder = spec.checkpoint.dir
    if spec.array is None or problems.has("array") or len(parse_array(spec.array).tasks) == 1:
        return
    if folder.startswith(("/", "..")) and "%a" not in folder:
        problems.add(
            places.get("checkpoint.dir"),
            "checkpoint.dir",
            f"all tasks of the array would write to {shown(folder)}: write %a for the task's number, like {folder}/%a",
        )


def _check_stages(spec: Spec, places: Places, problems: Problems) -> None:
    for name, stage in (("stage_in", spec.stage_in), ("stage_out", spec.stage_out)):
        if spec.components and stage.run and stage.on == "each_node":
            message = (
                "each_node is not for jobs of several components; use first_node, and srun --het-group in its lines"
            )
            problems.add(places.get(f"{name}.on"), f"{name}.on", message)


def _check_rescue(spec: Spec, places: Places, problems: Problems) -> None:
    if spec.rescue and spec.array is not None:
        problems.add(places.get("rescue"), "rescue", "not for arrays: let one `slurmtrain watch` look after all tasks")
    if spec.rescue_options and not spec.rescue:
        problems.add(places.get("rescue_options"), "rescue_options", "only with rescue: true")
    for option in spec.rescue_options:
        name = option.partition("=")[0].removeprefix("--")
        if name in _OURS_IN_RESCUE:
            problems.add(places.get("rescue_options"), "rescue_options", f"--{name} is slurmtrain's own; leave it out")


def _check_components(spec: Spec, places: Places, problems: Problems) -> None:
    if not spec.components:
        return
    if spec.array is not None:
        problems.add(places.get("array"), "array", "Slurm makes no arrays of heterogeneous jobs: leave components out")
    if ":" in spec.command:
        problems.add(
            places.get("command"), "command", "with components, srun takes an argument ':' for the next component"
        )


def _time_notes(spec: Spec) -> list[str]:
    text = spec.resources.time_limit
    limit = parse_time_limit(text) if text else None
    if text is None or limit is None:
        return []
    notes = []
    if re.fullmatch(r"[0-9]+:[0-9]+", text) and limit < 3600:
        notes.append(f"time_limit {text} means minutes:seconds to Slurm ({limit} s); for hours write {text}:00")
    left = limit - warning_lead_s(spec) - _EARLY_S
    if left < 60:
        lead = warning_lead_s(spec)
        notes.append(
            f"the training may be asked to save after {max(left, 0)} s already: the warning comes {lead} s before the "
            f"time limit of {limit} s, and Slurm may send it up to {_EARLY_S} s early"
        )
    return notes


def _command_notes(spec: Spec, environ: Mapping[str, str]) -> list[str]:
    notes = []
    program = Path(spec.command[0]).name
    for word in spec.command if program not in {"bash", "sh"} else ():
        if word.startswith("~/") or re.search(r"\$\{?[A-Za-z_]", word):
            notes.append(f"{shown(word)} is passed on as it is, no shell expands it: write the value, or [bash, -c, …]")
    if program in {"srun", "mpirun", "mpiexec", "sbatch"}:
        notes.append(f"slurmtrain starts the command on every rank by itself: leave {program} away")
    if spec.launcher == "srun" and program == "torchrun":
        notes.append("with launcher: torchrun, slurmtrain arranges nodes, ranks and the meeting point of torchrun")
    missing = _missing_file(spec, environ)
    return [*notes, missing] if missing else notes


def _missing_file(spec: Spec, environ: Mapping[str, str]) -> str | None:
    """A file of the command that is not there now. It may come later, so this is a note."""
    program, *rest = spec.command
    workdir = Path(spec.workdir or ".")
    if "/" in program and not (workdir / program).exists():
        return f"{shown(program)} does not exist now"
    script = program if spec.launcher == "torchrun" and program.endswith(".py") else None
    if PYTHON.fullmatch(Path(program).name) or Path(program).name in {"bash", "sh"}:
        script = rest[0] if rest and not rest[0].startswith("-") else None
    if script is not None and not (workdir / script).exists():
        return f"{shown(script)} does not exist in {workdir} now"
    if "/" in program or script == program or spec.environment.setup or spec.launcher == "torchrun":
        return None
    if shutil.which(program, path=environ.get("PATH")):
        return None
    return f"{shown(program)} is not on the PATH here; if a module brings it, load that in environment.setup"


def _name_notes(spec: Spec) -> list[str]:
    if spec.name in {"bash", "interactive"}:
        return [f"Lightning switches its Slurm support off in a job named {spec.name!r}; choose another name"]
    return []
