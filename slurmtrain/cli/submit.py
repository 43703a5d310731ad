"""``slurmtrain submit``: a job file, or options and a command, become a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slurmtrain.cli.options import JobCommand, build_request, job_options
from slurmtrain.cli.output import print_json, print_text, say_note

_EXAMPLES = """\b
Examples:
  slurmtrain submit job.yaml
  slurmtrain submit job.yaml --set resources.nodes=4 --set environment.variables.SEED=7
  slurmtrain submit -N 2 --ntasks-per-node 4 --gpus-per-node 4 -t 24:00:00 -- python train.py --lr 1e-4
  slurmtrain submit --launcher torchrun -N 2 --ntasks-per-node 8 -- train.py
  slurmtrain submit job.yaml --dry-run"""


@click.command("submit", cls=JobCommand, epilog=_EXAMPLES)
@job_options
@click.option("--dry-run", is_flag=True, help="Check everything, ask Slurm too, submit nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print run_id, job_id and run_dir as JSON.")
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
    from slurmtrain.cli.build import build_run, open_slurm
    from slurmtrain.ops.submit import submit_run

    prepared = build_run(build_request(job_file, sets, values, ctx.obj), store, folders)
    for note in prepared.notes:
        say_note(note)
    slurm = open_slurm()
    run = prepared.run
    if dry_run:
        from slurmtrain.ops.dry_run import check_with_slurm

        said = check_with_slurm(prepared, slurm)
        if as_json:
            print_json({"run_id": run.run_id, "job_id": None, "run_dir": str(run.path), "dry_run": True, "slurm": said})
        else:
            print_text(f"nothing was submitted; Slurm would take it: {said}")
        return
    accepted = submit_run(prepared, slurm, name=prepared.resolved.spec.name, tell=say_note)
    for note in accepted.notes:
        say_note(note)
    if as_json:
        print_json({"run_id": run.run_id, "job_id": str(accepted.job_id), "run_dir": str(run.path)})
    else:
        print_text(f"submitted run {run.run_id} as job {accepted.job_id}")
        print_text(f"log: {run.log_file(str(accepted.job_id))}")
