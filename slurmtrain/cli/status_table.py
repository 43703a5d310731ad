"""The lines that ``slurmtrain status`` prints: one for each run, and one for each state of an array."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurmtrain.cli.output import clean, print_text
from slurmtrain.core.array import fold_tasks
from slurmtrain.core.decision import RunState

if TYPE_CHECKING:
    from slurmtrain.ops.status import RunStatus

_HEAD = ("RUN", "STATE", "JOB", "TRY", "NODES", "SINCE", "WHY")
_DROPPED = ("SINCE", "NODES", "TRY", "JOB")  # left out, in this order, where the terminal is too narrow
_GOING = frozenset({RunState.STARTING, RunState.RUNNING})
_WIDEST = (48, 24, 24, 8, 24, 12)  # to which columns are padded for a pipe
_PLAIN, _LEAST_PLAIN_WHY = 160, 60
_LEAST_WHY = 16
_LONGEST_TASKS = 24
_COLOURS = {
    "Running": "green", "Completed": "green", "Failed": "red", "Terminated": "red", "Stopped": "magenta",
    "Held": "yellow", "Preempted": "yellow", "Starting": "cyan", "Inqueue": "blue", "Pending": "blue",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: a cell for each column, and the state that colours it."""

    cells: tuple[str, ...]
    state: str


def fold(rows: Sequence[RunStatus], members: Iterable[tuple[str, str, int]], vocabulary: str | None) -> list[Line]:
    """A line for each run; runs of one array (``members``: run id, group id, task) that are in one state share one."""
    places = {run_id: (group, task) for run_id, group, task in members}
    bundles: dict[tuple[str, str], list[RunStatus]] = {}
    for row in rows:
        group = places[row.run_id][0] if row.run_id in places else row.run_id
        bundles.setdefault((group, row.state.value), []).append(row)
    first: dict[str, int] = {}
    for group, _state in bundles:
        first.setdefault(group, len(first))
    ordered = sorted(bundles.items(), key=lambda item: first[item[0][0]])  # the states of an array stand together
    return [
        _line(bundle[0], vocabulary)
        if len(bundle) == 1
        else _shared_line(group, bundle, [places[row.run_id][1] for row in bundle], vocabulary)
        for (group, _state), bundle in ordered
    ]


def _line(row: RunStatus, vocabulary: str | None) -> Line:
    tried = ".".join(str(number) for number in (row.attempt, row.launch) if number is not None)
    since = _when(row.ended_at or row.started_at or row.submitted_at)
    return _clean(
        row, row.run_id, _state(row, vocabulary), row.job_id or "", tried, _nodes(row.nodes), since, _why(row)
    )


def _shared_line(group: str, rows: Sequence[RunStatus], tasks: Sequence[int], vocabulary: str | None) -> Line:
    from slurmtrain.core.vocabulary import words_for

    listed = _tasks(tasks)
    jobs = {(row.job_id or "").partition("_")[0] for row in rows}
    job = f"{jobs.pop()}_[{listed}]" if len(jobs) == 1 and "" not in jobs else ""
    state = words_for(rows[0].state, None).word(vocabulary) if vocabulary else rows[0].state.value
    nodes = _nodes(tuple(dict.fromkeys(node for row in rows for node in row.nodes)))
    reasons = Counter(_why(row).replace(row.job_id or "\0", job or "its job") for row in rows)
    why, count = reasons.most_common(1)[0]
    if len(reasons) > 1:
        why = f"{count} of {len(rows)}: {why}" if why else f"{len(reasons) - 1} reasons, see status -r"
    return _clean(rows[0], f"{group}-[{listed}]", f"{state} x{len(rows)}", job, "", nodes, "", why)


def _tasks(tasks: Sequence[int]) -> str:
    listed = fold_tasks(tasks)
    return listed if len(listed) <= _LONGEST_TASKS else f"{min(tasks)}..{max(tasks)}"


def _clean(row: RunStatus, *cells: str) -> Line:
    return Line(tuple(clean(cell).replace("\n", " ") for cell in cells), row.state.value)


def _why(row: RunStatus) -> str:
    reason = row.reason
    if row.cause and not reason and row.state in _GOING:
        reason = f"went on after {row.cause}"
    elif row.cause and row.cause not in {*row.reason.split(), "user_cancelled"}:
        reason = f"{row.cause}: {row.reason}" if row.reason else row.cause
    if row.pace is None:
        return reason
    from slurmtrain.ops.pace import describe_pace

    return "; ".join(filter(None, (describe_pace(row.pace, time.time()), reason)))


def _nodes(nodes: tuple[str, ...]) -> str:
    from slurmtrain.core.nodeset import fold_nodes

    try:
        return fold_nodes(nodes)
    except ValueError:
        return f"{len(nodes)} nodes"


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


def print_plain(lines: Sequence[Line], *, whole: bool) -> None:
    """For a pipe: columns of text. Ids are never cut, and a long one is no reason to pad those of all others.

    ``whole``: the reasons are not cut, either.
    """
    wide = shutil.get_terminal_size((_PLAIN, 24)).columns  # of a pipe: $COLUMNS
    table = [_HEAD, *(_with_few_nodes(line.cells) for line in lines)]
    widths = [min(most, max(len(cells[column]) for cells in table)) for column, most in enumerate(_WIDEST)]
    for cells in table:
        begin = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
        room = max(_LEAST_PLAIN_WHY, wide - len(begin) - 2)
        why = cells[-1] if whole or len(cells[-1]) <= room else f"{cells[-1][: room - 1]}…"
        print_text(f"{begin}  {why}".rstrip())


def _with_few_nodes(cells: tuple[str, ...]) -> tuple[str, ...]:
    """How many nodes, where their list would be long."""
    from slurmtrain.core.nodeset import expand_nodes

    column = _HEAD.index("NODES")
    if len(cells[column]) <= _WIDEST[column]:
        return cells
    return (*cells[:column], f"{len(expand_nodes(cells[column]))} nodes", *cells[column + 1 :])


def print_table(lines: Sequence[Line]) -> None:
    """Whole ids and states, whatever the width: what can be cut is the reason, what can be left out the rest."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    columns, room = _fit([_HEAD, *(line.cells for line in lines)], console.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(_HEAD[column], overflow="fold", no_wrap=_HEAD[column] not in {"RUN", "WHY"})
    for line in lines:
        cells = {column: Text(line.cells[column]) for column in columns}
        cells[_HEAD.index("STATE")].stylize(_COLOURS.get(line.state, ""))
        if len(lines) > 3:  # one line for each of many; few may use several for their reason
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
