"""``slurmtrain logs``: a run's output, over all its jobs and attempts, or as it comes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.output import say_note
from slurmtrain.cli.runs import ask_slurm, json_option, open_store, run_argument, store_option

if TYPE_CHECKING:
    from pathlib import Path

    from slurmtrain.ops.logs import LogLine, Owners, Segment
    from slurmtrain.ops.timeline import RunView
    from slurmtrain.store.rundir import RunDir

_EXAMPLES = """\b
Examples:
  slurmtrain logs RUN                     everything, all jobs of the run in order
  slurmtrain logs RUN --follow --tail 20  the last lines, then what comes, through requeues, to the run's end
  slurmtrain logs RUN --attempt 0 --launch 2
  slurmtrain logs RUN --rank 3 | less"""

_OWNERS_S = 2.0  # how long it is believed whose lines are whose


@click.command("logs", epilog=_EXAMPLES)
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended; survives requeues.")
@click.option("--attempt", type=click.IntRange(0), metavar="N", help="Only this attempt.")
@click.option("--launch", type=click.IntRange(0), metavar="M", help="Only this launch (of the last attempt).")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only lines that this rank printed.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--raw", is_flag=True, help="On a terminal too, print the bytes as they are.")
@json_option("Print one JSON object for each line.")
@store_option
def command(
    run: str,
    follow: bool,
    attempt: int | None,
    launch: int | None,
    rank: int | None,
    tail: int | None,
    raw: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Show or follow a run's output.

    On a terminal, control characters are made harmless and colours kept; into a pipe or a file go the bytes as they
    are.
    """
    from slurmtrain.ops.timeline import read_view
    from slurmtrain.store.find import find_run

    if follow and (attempt is not None or launch is not None):
        raise click.UsageError("--follow shows what comes next; it does not go with --attempt or --launch")
    found = find_run(open_store(store), run)
    view = read_view(found)
    for problem in view.damage:
        say_note(problem)
    printer = _Printer(view, rank, raw=raw or not sys.stdout.isatty(), as_json=as_json)
    try:
        _print_all(view, printer, attempt, launch, tail, follow=follow)
    except KeyboardInterrupt:
        if not follow:
            raise
        raise SystemExit(130) from None


def _print_all(
    view: RunView, printer: _Printer, attempt: int | None, launch: int | None, tail: int | None, *, follow: bool
) -> None:
    from slurmtrain.ops.logs import find_segments

    segments = [segment for segment in find_segments(view, attempt, launch) if segment.path.is_file()]
    if not follow:
        if not segments:
            say_note(f"run {view.run.run_id} has written nothing yet; `slurmtrain status {view.run.run_id}` says why")
        printer.print_segments(segments, tail)
        if segments and printer.missed is not None:
            say_note(printer.missed)
        return
    starts = {} if tail is None else _tail_starts(segments, tail)
    printer.follow(view.run, starts)


def _tail_starts(segments: list[Segment], tail: int) -> dict[Path, int]:
    """Where to begin in each log so that just the last lines of the newest are shown."""
    from slurmtrain.logs.follow import find_tail

    starts: dict[Path, int] = {segment.path: segment.path.stat().st_size for segment in segments}
    if segments:
        starts[segments[-1].path] = find_tail(segments[-1].path, tail)
    return starts


class _Printer:
    """Lines to stdout, notices to stderr."""

    def __init__(self, view: RunView, rank: int | None, *, raw: bool, as_json: bool) -> None:
        from slurmtrain.ops.timeline import find_plan

        self._view = view
        self._rank = rank
        self._raw = raw
        self._as_json = as_json
        self._owners: Owners | None = None
        self._owners_at = 0.0
        spec = plan.spec if (plan := find_plan(view.run)) is not None else None
        self._ranks: set[int] = set()  # that printed something
        self._tasks = spec.resources.tasks_per_node if spec is not None and spec.launcher == "torchrun" else 0

    @property
    def missed(self) -> str | None:
        """Why nothing was printed, where one rank was asked for and others wrote."""
        if self._rank is None or self._rank in self._ranks:
            return None
        if not self._ranks:
            return f"no line says which rank printed it, so none can be told to be of rank {self._rank}"
        return f"rank {self._rank} printed nothing; {len(self._ranks)} ranks did, the highest is {max(self._ranks)}"

    def print_segments(self, segments: list[Segment], tail: int | None) -> None:
        """All that is there. ``tail`` counts the lines that are printed, over all segments."""
        from slurmtrain.errors import StoreError
        from slurmtrain.logs.follow import read_range

        try:
            if tail is not None:
                self._print_tail(segments, tail)
            elif self._raw and not self._as_json and self._rank is None:
                for segment in segments:
                    for data in read_range(segment.path, segment.start, segment.end):
                        sys.stdout.buffer.write(data)
            else:
                for line in self._lines(segments):
                    self._print(line)
        except (BrokenPipeError, StoreError):
            raise
        except OSError as exc:
            raise StoreError(f"cannot read the log {exc.filename or ''}: {exc.strerror or exc}") from exc
        sys.stdout.buffer.flush()

    def _print_tail(self, segments: list[Segment], tail: int) -> None:
        from collections import deque
        from dataclasses import replace

        from slurmtrain.logs.follow import find_tail

        if self._rank is None and segments:  # far cheaper: only the end of the newest log is read
            last = segments[-1]
            short = replace(last, start=find_tail(last.path, tail, last.start, last.end))
            lines = list(self._lines([short]))
            if len(lines) >= tail or len(segments) == 1:
                for line in lines:
                    self._print(line)
                return
        for line in deque((x for x in self._lines(segments) if self._wanted(x)), maxlen=tail):
            self._print(line)

    def _lines(self, segments: list[Segment]) -> Iterator[LogLine]:
        from slurmtrain.logs.follow import read_lines
        from slurmtrain.ops.logs import LogLine

        for segment in segments:
            at = segment.start
            for data in read_lines(segment.path, segment.start, segment.end):
                yield LogLine(segment.path, at, data)
                at += len(data)

    def follow(self, run: RunDir, starts: dict[Path, int]) -> None:
        from slurmtrain.ops.logs import Following

        for line in Following(run, ask_slurm(), starts).lines():
            if line.notice:
                sys.stdout.buffer.flush()
                say_note(line.notice)
            else:
                self._print(line)
                sys.stdout.buffer.flush()

    def _wanted(self, line: LogLine) -> bool:
        from slurmtrain.ops.logs import rank_of

        if self._rank is None:
            return True
        rank = rank_of(line.data, self._tasks)
        if rank is not None:
            self._ranks.add(rank)
        return rank == self._rank

    def _print(self, line: LogLine) -> None:
        from slurmtrain.logs.follow import for_terminal

        if not self._wanted(line):
            return
        if self._as_json:
            data = json.dumps(self._to_dict(line)).encode() + b"\n"
        elif self._raw:
            data = line.data
        else:
            data = for_terminal(line.data)
            if b"\r" in line.data and not data.endswith(b"\n"):
                data += b"\n"  # a progress bar that goes on: each of its states is a line here
        sys.stdout.buffer.write(data)

    def _to_dict(self, line: LogLine) -> dict[str, object]:
        from slurmtrain.ops.logs import Owners, rank_of
        from slurmtrain.ops.timeline import read_view

        if self._owners is None or time.monotonic() - self._owners_at > _OWNERS_S:
            self._owners, self._owners_at = Owners(read_view(self._view.run)), time.monotonic()
        owner = self._owners.find(line.path, line.offset)
        text = line.data.decode("utf-8", "replace").rstrip("\n")
        where = {"file": str(line.path), "offset": line.offset, "attempt": owner.attempt, "launch": owner.launch}
        return {**where, "rank": rank_of(line.data, self._tasks), "text": text}
