"""``slurmtrain logs``: a run's output, over all its jobs and attempts, or as it comes."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.output import say_note
from slurmtrain.cli.runs import ask_slurm, json_option, open_store, run_argument, store_option

if TYPE_CHECKING:
    from pathlib import Path

    from slurmtrain.cli.log_printer import Printer
    from slurmtrain.ops.logs import Segment
    from slurmtrain.ops.timeline import RunView

_EXAMPLES = """\b
Examples:
  slurmtrain logs RUN                     everything, all jobs of the run in order
  slurmtrain logs RUN --follow --tail 20  the last lines, then what comes, through requeues, to the run's end
  slurmtrain logs RUN --attempt 0 --launch 2
  slurmtrain logs RUN --rank 3 | less
  slurmtrain logs RUN --node n17 --since 2h
  slurmtrain logs RUN --follow --grep 'loss|Error'"""


@click.command("logs", epilog=_EXAMPLES)
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended; survives requeues.")
@click.option("--attempt", type=click.IntRange(0), metavar="N", help="Only this attempt.")
@click.option("--launch", type=click.IntRange(0), metavar="M", help="Only this launch (of the last attempt).")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only lines that this rank printed.")
@click.option("--node", metavar="NAME", help="Only lines of the ranks on this node, or that name it.")
@click.option("--since", metavar="WHEN", help="Only what is newer: 10m, 1h30m, 2d, 14:30, 2026-11-30T14:30.")
@click.option("--grep", "pattern", metavar="REGEX", help="Only lines that match a regular expression of Python's.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--raw", is_flag=True, help="Print the bytes as they are, whatever they would do to a terminal.")
@json_option("Print one JSON object for each line.")
@store_option
def command(
    run: str,
    follow: bool,
    attempt: int | None,
    launch: int | None,
    rank: int | None,
    node: str | None,
    since: str | None,
    pattern: str | None,
    tail: int | None,
    raw: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Show or follow a run's output.

    Control characters are made harmless; colours are kept on a terminal and left out elsewhere; of a progress bar the
    last state is shown. With --follow the exit code is 0 when the run is over, whatever its end: `slurmtrain wait RUN`
    tells that.
    """
    from slurmtrain.cli.log_printer import Printer
    from slurmtrain.logs.search import LineSearch
    from slurmtrain.ops.timeline import read_view
    from slurmtrain.store.find import find_run

    if follow and (attempt is not None or launch is not None):
        raise click.UsageError("--follow shows what comes next; it does not go with --attempt or --launch")
    search = LineSearch(pattern) if pattern is not None else None
    begin = _parse_since(since)
    view = read_view(find_run(open_store(store), run))
    for problem in view.damage:
        say_note(problem)
    printer = Printer(view, rank=rank, node=node, search=search, raw=raw, as_json=as_json)
    with search.bounded() if search is not None else contextlib.nullcontext():
        try:
            if follow:
                printer.follow(view.run, ask_slurm(), _starts(view, begin, tail))
            else:
                _print_all(view, printer, _find(view, begin, attempt, launch), tail)
        except KeyboardInterrupt:
            if not follow:
                raise
            raise SystemExit(130) from None


def _parse_since(since: str | None) -> float | None:
    from datetime import datetime

    from slurmtrain.logs.times import parse_since

    return parse_since(since, datetime.now().astimezone()) if since is not None else None


def _find(view: RunView, begin: float | None, *which: Any) -> list[Segment]:
    from slurmtrain.ops.logs import cut_before, find_segments

    segments = [segment for segment in find_segments(view, *which) if segment.path.is_file()]
    return segments if begin is None else cut_before(view, segments, begin)


def _print_all(view: RunView, printer: Printer, segments: list[Segment], tail: int | None) -> None:
    if not segments and view.run.pruned_file.exists():
        say_note(f"the logs of run {view.run.run_id} were deleted by `slurmtrain prune`")
    elif not segments:
        say_note(f"run {view.run.run_id} has written nothing yet; `slurmtrain status {view.run.run_id}` says why")
    printer.print_segments(segments, tail)
    sys.stdout.flush()
    if segments and printer.missed is not None:
        say_note(printer.missed)


def _starts(view: RunView, begin: float | None, tail: int | None) -> dict[Path, int]:
    """Where to begin in each log that exists: at what ``--since`` names, and at the last lines of the newest log."""
    from slurmtrain.logs.follow import find_tail

    everything = _find(view, None)
    starts: dict[Path, int] = {}
    if begin is not None:
        starts = {segment.path: segment.path.stat().st_size for segment in everything}
        starts |= {segment.path: segment.start for segment in reversed(_find(view, begin))}
    if tail is not None and everything:
        last = everything[-1].path
        starts = {segment.path: segment.path.stat().st_size for segment in everything}
        starts[last] = max(starts[last] if begin is not None and not tail else 0, find_tail(last, tail))
    return starts
