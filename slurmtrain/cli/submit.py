"""``slurmtrain submit``: a job file, or options and a command, become a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.options import JobCommand, build_request, job_options
from slurmtrain.cli.output import print_json, print_text, say_note
from slurmtrain.cli.runs import note_space

if TYPE_CHECKING:
    from slurmtrain.ops.array import PreparedArray
    from slurmtrain.ops.prepare import Prepared
    from slurmtrain.slurm.client import SlurmClient

_EXAMPLES = """\b
Examples:
  slurmtrain submit job.yaml
  slurmtrain submit job.yaml --set resources.nodes=4 --set environment.variables.SEED=7
  slurmtrain submit -N 2 --ntasks-per-node 4 --gpus-per-node 4 -t 24:00:00 -- python train.py --lr 1e-4
  slurmtrain submit --launcher torchrun -N 2 --ntasks-per-node 8 -- train.py
  slurmtrain submit job.yaml --array 0-7%4        eight runs, four at once; each sees SLURM_ARRAY_TASK_ID
  slurmtrain submit job.yaml --dry-run"""


@click.command("submit", cls=JobCommand, epilog=_EXAMPLES)
@job_options
@click.option("--dry-run", is_flag=True, help="Check everything, ask Slurm too, submit nothing.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print run_id, job_id and run_dir as JSON.",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    job_file: Path | None,
    sets: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    store: str | None,
    folders: tuple[Path, ...],
    **values: Any,
) -> None:
    """Submit a training run from a job file, or from options and a command after --.

    The run survives preemption, the time limit and passing failures by itself. Options win over the job file.
    """
    from slurmtrain.cli.build import build_run
    from slurmtrain.cli.slurm import open_slurm
    from slurmtrain.ops.array import PreparedArray
    from slurmtrain.ops.fits import warn_of_size
    from slurmtrain.ops.submit import submit_run

    prepared = build_run(build_request(job_file, sets, values, ctx.obj), store, folders)
    for note in prepared.notes:
        say_note(note)
    note_space(_store_of(prepared), quota=True)
    slurm = open_slurm()
    for note in warn_of_size(prepared.resolved.spec, slurm):
        say_note(note)
    if dry_run:
        _dry_run(prepared, slurm, as_json=as_json)
        return
    if isinstance(prepared, PreparedArray):
        _submit_array(prepared, slurm, as_json=as_json)
        return
    run = prepared.run
    accepted = submit_run(prepared, slurm, name=prepared.resolved.spec.name, tell=say_note)
    for note in accepted.notes:
        say_note(note)
    if as_json:
        print_json({"run_id": run.run_id, "job_id": str(accepted.job_id), "run_dir": str(run.path)})
    else:
        print_text(f"submitted run {run.run_id} as job {accepted.job_id}")
        print_text(f"log: {run.log_file(str(accepted.job_id))}")


def _store_of(prepared: Prepared | PreparedArray) -> Path:
    from slurmtrain.ops.prepare import Prepared

    made = prepared.run.path if isinstance(prepared, Prepared) else prepared.group.path
    return made.parent.parent


def _dry_run(prepared: Prepared | PreparedArray, slurm: SlurmClient, *, as_json: bool) -> None:
    from slurmtrain.ops.dry_run import try_submit
    from slurmtrain.ops.prepare import Prepared

    if isinstance(prepared, Prepared):
        name, path = prepared.run.run_id, prepared.run.path
    else:
        name, path = prepared.group.group_id, prepared.group.path
    said = try_submit(prepared, slurm)
    if as_json:
        print_json({"run_id": name, "job_id": None, "run_dir": str(path), "dry_run": True, "slurm": said})
    else:
        print_text(f"nothing was submitted; Slurm would take it: {said}")


def _submit_array(prepared: PreparedArray, slurm: SlurmClient, *, as_json: bool) -> None:
    from slurmtrain.core.array import fold_tasks
    from slurmtrain.ops.array import submit_array

    accepted = submit_array(prepared, slurm, tell=say_note)
    for note in accepted.notes:
        say_note(note)
    group, job = accepted.group, str(accepted.job_id)
    runs = [(task, group.run(task)) for task in prepared.request.tasks]
    if as_json:
        listed = [
            {"run_id": run.run_id, "task": task, "job_id": f"{job}_{task}", "run_dir": str(run.path)}
            for task, run in runs
        ]
        print_json({"run_id": group.group_id, "job_id": job, "run_dir": str(group.path), "runs": listed})
    else:
        tasks = fold_tasks(prepared.request.tasks)
        print_text(f"submitted array {group.group_id} as job {job}: {len(runs)} runs, {group.group_id}-[{tasks}]")
        print_text(f"logs: {runs[0][1].log_file(f'{job}_{runs[0][0]}')} and so on")
