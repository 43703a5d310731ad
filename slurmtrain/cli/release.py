"""``slurmtrain release``: a held run goes on."""

from __future__ import annotations

import click

from slurmtrain.cli.output import clean, print_text
from slurmtrain.cli.runs import dry_run_option, open_store, person, run_argument, store_option

_EXAMPLES = """\b
Examples:
  slurmtrain release RUN           go on from the newest checkpoint, as a new job
  slurmtrain release RUN -x n[3-4] without these nodes"""


@click.command("release", epilog=_EXAMPLES)
@run_argument
@click.option("-x", "--exclude", default="", metavar="NODES", help="Nodes that the new job must avoid, too.")
@dry_run_option
@store_option
def command(run: str, exclude: str, dry_run: bool, store: str | None) -> None:
    """Let a held run go on: a new job of the same run. A job that Slurm itself holds is released; one that waits for
    its retry starts now.

    A run that is not held is left as it is.
    """
    from slurmtrain.cli.slurm import open_slurm
    from slurmtrain.ops.release import plan_release, release_run
    from slurmtrain.ops.timeline import read_view
    from slurmtrain.store.find import find_run

    found = find_run(open_store(store), run)
    slurm = open_slurm()
    if dry_run:
        print_text(clean(f"would do: {plan_release(read_view(found), slurm).sentence}"))
    else:
        print_text(clean(release_run(found, slurm, person(), exclude)))
