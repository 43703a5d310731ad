"""``slurmtrain status``: what runs are doing and why."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.output import clean, print_json, print_text, say_note
from slurmtrain.cli.runs import ask_slurm, find_named, json_option, open_store, runs_argument, store_option
from slurmtrain.core.vocabulary import VOCABULARIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slurmtrain.ops.status import RunStatus

_EXAMPLES = """\b
Examples:
  slurmtrain status                       all runs, the newest last
  slurmtrain status --active              those that have not ended
  slurmtrain status RUN                   one, by its id, the beginning of it, or a job id
  slurmtrain status --json | jq '.[] | select(.state == "Failed") | .run_id'
  slurmtrain status --vocabulary sagemaker"""
_HEAD = ("RUN", "STATE", "JOB", "TRY", "NODES", "SINCE", "WHY")
_DROPPED = ("SINCE", "NODES", "TRY", "JOB")  # left out, in this order, where the terminal is too narrow
_LEAST_WHY = 16
_COLOURS = {
    "Running": "green", "Completed": "green", "Failed": "red", "Terminated": "red", "Stopped": "magenta",
    "Held": "yellow", "Preempted": "yellow", "Starting": "cyan", "Inqueue": "blue", "Pending": "blue",
}  # fmt: skip


@click.command("status", epilog=_EXAMPLES)
@runs_argument(required=False)
@click.option("--active", is_flag=True, help="Only runs that have not ended.")
@click.option("-n", "--last", type=click.IntRange(1), metavar="N", help="Only the N newest.")
@click.option(
    "--vocabulary", type=click.Choice(VOCABULARIES), help="Show states in the words of another system (docs/states.md)."
)
@json_option("Print a list with one object for each run.")
@store_option
def command(
    runs: tuple[str, ...], active: bool, last: int | None, vocabulary: str | None, as_json: bool, store: str | None
) -> None:
    """Show what runs are doing and why. TRY is attempt.launch, both counted from 0.

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
    for row in rows:
        for problem in row.damage:
            say_note(f"{row.run_id}: {problem}")
    if as_json:
        print_json([row.to_dict() for row in rows])
    elif not rows:
        print_text(f"no {'active ' if active else ''}runs in {clean(str(folder))}; `slurmtrain submit` makes one")
    elif sys.stdout.isatty():
        _print_table(rows, vocabulary)
    else:
        _print_plain(rows, vocabulary)


def _cells(row: RunStatus, vocabulary: str | None) -> tuple[str, ...]:
    from slurmtrain.core.nodeset import fold_nodes

    tried = f"{row.attempt}.{row.launch}" if row.launch is not None else "" if row.attempt is None else f"{row.attempt}"
    since = row.ended_at or row.started_at or row.submitted_at
    try:
        nodes = fold_nodes(row.nodes)
    except ValueError:
        nodes = f"{len(row.nodes)} nodes"
    why = row.reason
    if row.cause and row.cause not in {*why.split(), "user_cancelled"}:
        why = f"{row.cause}: {why}" if why else row.cause
    cells = (row.run_id, _state(row, vocabulary), row.job_id or "", tried, nodes, _when(since), why)
    return tuple(clean(cell).replace("\n", " ") for cell in cells)


def _state(row: RunStatus, vocabulary: str | None) -> str:
    from slurmtrain.core.vocabulary import Stage, words_for

    if vocabulary:
        return words_for(row.state, row.stage).word(vocabulary)
    if row.stage is Stage.STARTING and row.nodes:
        return f"{row.state.value} {row.nodes_reported}/{len(row.nodes)}"
    if row.stage in {None, Stage.STARTING, Stage.TRAINING}:
        return row.state.value
    return f"{row.state.value} ({str(row.stage.value if row.stage else '').replace('_', ' ')})"


def _when(at: float | None) -> str:
    """The time of day, with the date where it is not today's."""
    if at is None:
        return ""
    then, today = time.localtime(at), time.localtime()
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%d %b %H:%M", then)


def _print_plain(rows: Sequence[RunStatus], vocabulary: str | None) -> None:
    table = [_HEAD, *(_cells(row, vocabulary) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEAD) - 1)]
    for line in table:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        print_text("  ".join([*padded, line[-1]]).rstrip())


def _print_table(rows: Sequence[RunStatus], vocabulary: str | None) -> None:
    """Whole ids and states, whatever the width: what can be cut is the reason, what can be left out the rest."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    lines = [_HEAD, *(_cells(row, vocabulary) for row in rows)]
    columns, room = _fit(lines, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(_HEAD[column], overflow="fold", no_wrap=_HEAD[column] not in {"RUN", "WHY"})
    for row, line in zip(rows, lines[1:], strict=True):
        cells = {column: Text(line[column]) for column in columns}
        cells[_HEAD.index("STATE")].stylize(_COLOURS.get(row.state.value, ""))
        if len(rows) > 3:  # one line for each of many; few may use several for their reason
            cells[_HEAD.index("WHY")].truncate(room, overflow="ellipsis")
        table.add_row(*cells.values())
    console.print(table)


def _fit(lines: Sequence[tuple[str, ...]], width: int) -> tuple[list[int], int]:
    """The columns to show on a terminal of ``width`` cells, and how many of them the reason may take."""
    from rich.cells import cell_len

    columns = list(range(len(_HEAD)))
    for dropped in ("", *_DROPPED):
        columns = [column for column in columns if _HEAD[column] != dropped]
        taken = sum(2 + max(cell_len(line[column]) for line in lines) for column in columns[:-1])
        if width - taken >= _LEAST_WHY:
            break
    return columns, max(width - taken, _LEAST_WHY)
