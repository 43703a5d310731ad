"""``slurmtrain restart``: a new run with the parameters of one that has ended."""

from __future__ import annotations

from datetime import datetime

import click

from slurmtrain.cli.output import clean, print_json, print_text, say_note
from slurmtrain.cli.runs import dry_run_option, json_option, run_argument, store_option

_EXAMPLES = """\b
Examples:
  slurmtrain restart RUN              goes on from its newest checkpoint (a completed run: anew)
  slurmtrain restart RUN --no-resume
To change a parameter, submit the old run's job file: slurmtrain submit STORE/runs/RUN/spec.yaml --set KEY=VALUE
  and, to go on from its checkpoints: --set checkpoint.dir=STORE/runs/RUN/checkpoints"""


@click.command("restart", epilog=_EXAMPLES)
@run_argument
@click.option("--resume/--no-resume", default=None, help="Go on in the old run's checkpoint directory, or begin anew.")
@dry_run_option
@json_option("Print run_id, job_id, run_dir and restarted_from as JSON.")
@store_option
def command(run: str, resume: bool | None, dry_run: bool, as_json: bool, store: str | None) -> None:
    """Start a new run with the parameters of one that has ended; the new run names the old one."""
    from slurmtrain.cli.build import find_extensions, open_slurm
    from slurmtrain.cli.here import find_here
    from slurmtrain.cli.runs import load_here
    from slurmtrain.ops.restart import prepare_restart
    from slurmtrain.ops.submit import submit_run
    from slurmtrain.ops.timeline import read_view
    from slurmtrain.store.find import find_run

    settings = load_here(store)
    old = find_run(settings.store, run)
    extensions, notes = find_extensions(settings, find_here())
    prepared = prepare_restart(
        read_view(old),
        settings.store,
        datetime.now().astimezone(),
        extensions,
        agent_python=settings.agent_python,
        resume=resume,
    )
    for note in (*notes, *prepared.notes):
        say_note(note)
    new, job_id = prepared.run, None
    if dry_run:
        from slurmtrain.ops.dry_run import check_with_slurm

        said = check_with_slurm(prepared.scripts.batch, open_slurm())
        text = f"nothing was submitted; Slurm would take it: {said}"
    else:
        accepted = submit_run(prepared, open_slurm(), name=prepared.resolved.spec.name, tell=say_note)
        job_id = str(accepted.job_id)
        for note in accepted.notes:
            say_note(note)
        text = f"submitted run {new.run_id} as job {job_id}, restarted from {old.run_id}"
    if as_json:
        where = {"run_id": new.run_id, "job_id": job_id, "run_dir": str(new.path)}
        print_json({**where, "restarted_from": old.run_id, "dry_run": dry_run})
    else:
        print_text(clean(text))
