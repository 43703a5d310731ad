"""``slurmtrain restart``: a new run with the parameters of one that has ended."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.here import find_here
from slurmtrain.cli.output import clean, print_json, print_text, say_note
from slurmtrain.cli.runs import dry_run_option, json_option, load_here, run_argument, store_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from slurmtrain.config.resolve import Resolved
    from slurmtrain.config.settings import Settings
    from slurmtrain.core.spec import Spec

_EXAMPLES = """\b
Examples:
  slurmtrain restart RUN              goes on from its newest checkpoint (a completed run: anew)
  slurmtrain restart RUN --no-resume
  slurmtrain restart RUN --set resources.nodes=8 --set 'command=[python, train.py, --lr, "1e-5"]'
  slurmtrain restart RUN --set resources.time_limit=2-0 --dry-run"""


@click.command("restart", epilog=_EXAMPLES)
@run_argument
@click.option("--resume/--no-resume", default=None, help="Go on in the old run's checkpoint directory, or begin anew.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Another value for a key of the job file.")
@dry_run_option
@json_option("Print run_id, job_id, run_dir and restarted_from as JSON.")
@store_option
def command(
    run: str, resume: bool | None, sets: tuple[str, ...], dry_run: bool, as_json: bool, store: str | None
) -> None:
    """Start a new run with the parameters of one that has ended, some of them changed; each run names the other."""
    from slurmtrain.cli.build import find_extensions
    from slurmtrain.cli.slurm import open_slurm
    from slurmtrain.ops.fits import warn_of_size
    from slurmtrain.ops.restart import link_to_new, prepare_restart
    from slurmtrain.ops.submit import submit_run
    from slurmtrain.ops.timeline import read_view
    from slurmtrain.store.find import find_run

    settings, slurm = load_here(store), open_slurm()
    old = find_run(settings.store, run)
    extensions, notes = find_extensions(settings, find_here())
    prepared = prepare_restart(
        read_view(old),
        settings.store,
        datetime.now().astimezone(),
        extensions,
        agent_python=settings.agent_python,
        resume=resume,
        change=_changing(sets, settings) if sets else None,
    )
    for note in (*notes, *prepared.notes, *warn_of_size(prepared.resolved.spec, slurm)):
        say_note(note)
    new, job_id = prepared.run, None
    if dry_run:
        from slurmtrain.ops.dry_run import try_submit

        said = try_submit(prepared, slurm)
        text = f"nothing was submitted; Slurm would take it: {said}"
    else:
        accepted = submit_run(prepared, slurm, name=prepared.resolved.spec.name, tell=say_note)
        job_id = str(accepted.job_id)
        link_to_new(old, new.run_id)
        for note in accepted.notes:
            say_note(note)
        text = f"submitted run {new.run_id} as job {job_id}, restarted from {old.run_id}"
    if as_json:
        where = {"run_id": new.run_id, "job_id": job_id, "run_dir": str(new.path)}
        print_json({**where, "restarted_from": old.run_id, "dry_run": dry_run})
    else:
        print_text(clean(text))


def _changing(sets: tuple[str, ...], settings: Settings) -> Callable[[Spec, str], Resolved]:
    """What ``--set`` makes of the old run's spec."""
    from slurmtrain.config.resolve import change

    return lambda spec, name: change(spec, name, sets, settings, os.environ, find_here())
