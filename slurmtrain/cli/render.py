"""``slurmtrain render``: the scripts that submit would hand to Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slurmtrain.cli.options import JobCommand, build_request, job_options
from slurmtrain.cli.output import print_text, say_note

_EXAMPLES = """\b
Examples:
  slurmtrain render job.yaml                 the batch script
  slurmtrain render job.yaml --launch        what starts the ranks
  slurmtrain render -N 2 -- python train.py
  slurmtrain render job.yaml --out DIR       all files of a run, to look at or to sbatch by hand"""


@click.command("render", cls=JobCommand, epilog=_EXAMPLES)
@job_options
@click.option("--launch", is_flag=True, help="Print launch.sh instead of job.sbatch.")
@click.option("--spec", "show_spec", is_flag=True, help="Print the resolved spec and where each value comes from.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write a whole run directory there instead."
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    job_file: Path | None,
    sets: tuple[str, ...],
    launch: bool,
    show_spec: bool,
    out: Path | None,
    store: str | None,
    folders: tuple[Path, ...],
    **values: Any,
) -> None:
    """Print the scripts of a run without submitting it; Slurm is not asked.

    Of an array: the script that all tasks share, and what starts the ranks of the first.
    """
    from slurmtrain.cli.build import build_run
    from slurmtrain.ops.array import PreparedArray

    request = build_request(job_file, sets, values, ctx.obj)
    prepared = build_run(request, store, folders, run_dir=out.absolute() if out else None)
    for note in prepared.notes:
        say_note(note)
    if isinstance(prepared, PreparedArray):
        first, name, batch = prepared.runs[0], prepared.group.group_id, prepared.batch
    else:
        first, name, batch = prepared, prepared.run.run_id, prepared.scripts.batch
    if out is not None:
        from slurmtrain.ops.submit import create_run_dir

        create_run_dir(first)
        print_text(f"wrote {out}; to run it: sbatch {first.run.batch_script}")
    elif show_spec:
        from slurmtrain.config.specfile import dump_spec

        print_text(dump_spec(prepared.resolved.spec, prepared.resolved.sources, name))
    else:
        print_text(first.scripts.launch if launch else batch)
