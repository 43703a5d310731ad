"""``slurmtrain status``: what runs are doing and why."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.output import clean, print_json, print_text, say_note
from slurmtrain.cli.runs import ask_slurm, find_named, json_option, note_space, open_store, runs_argument, store_option
from slurmtrain.core.vocabulary import VOCABULARIES

if TYPE_CHECKING:
    from slurmtrain.ops.status import RunStatus

_MOST, _MOST_NAMED = 3, 50  # scenes that are read
_EXAMPLES = """\b
Examples:
  slurmtrain status                       all runs, the newest last
  slurmtrain status --active              those that have not ended
  slurmtrain status RUN                   one, by its id, the beginning of it, or a job id
  slurmtrain status -r ARRAY              each run of an array, not one line for each state
  slurmtrain status --json | jq '.[] | select(.state == "Failed") | .run_id'
  slurmtrain status --vocabulary sagemaker"""


@click.command("status", epilog=_EXAMPLES)
@runs_argument(required=False)
@click.option("--active", is_flag=True, help="Only runs that have not ended.")
@click.option("-r", "--array", "each", is_flag=True, help="One line for each run of an array, as squeue -r.")
@click.option("-n", "--last", type=click.IntRange(1), metavar="N", help="Only the N newest.")
@click.option(
    "--vocabulary", type=click.Choice(VOCABULARIES), help="Show states in the words of another system (docs/states.md)."
)
@json_option("Print a list with one object for each run.")
@store_option
def command(
    runs: tuple[str, ...],
    active: bool,
    each: bool,
    last: int | None,
    vocabulary: str | None,
    as_json: bool,
    store: str | None,
) -> None:
    """Show what runs are doing and why. TRY is attempt.launch, both counted from 0.

    Runs of one array that are in the same state share a line; --json lists each.

    One question to Slurm for all runs; when it does not answer, what the journals know is shown, with a note.
    """
    from slurmtrain.core.decision import ENDED_STATES
    from slurmtrain.ops.status import read_status
    from slurmtrain.store.rundir import runs_of

    folder = open_store(store)
    report = read_status(find_named(folder, runs) if runs else runs_of(folder), ask_slurm(), time.time())
    rows = [row for row in report.rows if not active or row.state not in ENDED_STATES][-(last or 0) :]
    if report.slurm_error:
        say_note(f"{report.slurm_error}; shown is what the journals know")
    note_space(folder)
    rows = _look_into_scenes(folder, rows, named=bool(runs))
    for row in rows:
        for problem in row.damage:
            say_note(f"{row.run_id}: {problem}")
    if as_json:
        print_json([row.to_dict() for row in rows])
    elif not rows:
        print_text(f"no {'active ' if active else ''}runs in {clean(str(folder))}; `slurmtrain submit` makes one")
    else:
        from slurmtrain.cli.status_table import fold, print_plain, print_table
        from slurmtrain.store.groups import members_of

        lines = fold(rows, [] if each else members_of(folder), vocabulary)
        if sys.stdout.isatty():
            print_table(lines)
        else:
            print_plain(lines, whole=bool(runs))
        for row in rows:
            _print_scene(row)


def _look_into_scenes(store: Path, rows: Sequence[RunStatus], *, named: bool) -> list[RunStatus]:
    """Of runs that were named, or of the newest few that failed or are held: reading them takes time."""
    from slurmtrain.core.decision import RunState
    from slurmtrain.ops.scene import look_into
    from slurmtrain.store.rundir import RunDir

    asking = {RunState.FAILED, RunState.TERMINATED, RunState.HELD}
    worth = [row.run_id for row in rows if row.scene is not None and (named or row.state in asking)]
    chosen = frozenset(worth[-(_MOST_NAMED if named else _MOST) :])
    return [
        replace(row, scene=look_into(RunDir(store / "runs" / row.run_id), row.scene))
        if row.scene is not None and row.run_id in chosen
        else row
        for row in rows
    ]


def _print_scene(row: RunStatus) -> None:
    """What the nodes showed, in a line that fits, and where it is."""
    if row.scene is None or not row.scene.seen:
        return
    from slurmtrain.ops.scene import say_scene

    room = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 160
    text = clean(f"scene of {row.run_id}: {say_scene(row.scene)}").replace("\n", " ")
    print_text(text if len(text) <= room else text[: room - 1] + "…")
    if row.scene.path:
        print_text(f"  {clean(row.scene.path)}")
