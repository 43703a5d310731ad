"""``slurmtrain explain``: what happened to a run, where, what shows it, what was decided, what to do next."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.output import clean, print_json, print_text, say_note
from slurmtrain.cli.runs import ask_slurm, json_option, open_store, run_argument, store_option

if TYPE_CHECKING:
    from slurmtrain.core.avoid import Avoided
    from slurmtrain.ops.explain import Explanation, LaunchRow

_EXAMPLES = """\b
Examples:
  slurmtrain explain RUN             one screen
  slurmtrain explain 4711            the run of job 4711
  slurmtrain explain RUN --timeline  every event, with who wrote it
  slurmtrain explain RUN --json | jq .diagnosis"""
_LABEL = 12  # columns of the labels on the left
_SHOWN_FIRST, _SHOWN_LAST = 2, 8  # launches of a long story
_TEXT = 2  # lines of the terminal that one log line may take
_BUDGETS = {
    "in_place": "restarts in place {} of {} (this attempt)",
    "requeues": "requeues {} of {}",
    "infrastructure": "infrastructure requeues {} of {}",
    "attempts": "attempts {} of {}",
    "GPU_hours": "{} of {} GPU hours for retries",
    "node_hours": "{} of {} node hours for retries",
    "hours": "{} of {} hours until its deadline",
}
_SHOWN_NODES = 8
_COLOURS = {"Completed": "green", "Running": "green", "Failed": "red", "Terminated": "red", "Held": "yellow"}


@click.command("explain", epilog=_EXAMPLES)
@run_argument
@click.option("--timeline", is_flag=True, help="Every event of the run instead.")
@json_option("Print one JSON object.")
@store_option
def command(run: str, timeline: bool, as_json: bool, store: str | None) -> None:
    """Say what happened to a run, on which rank and node, what was decided and why, and what to do next."""
    from slurmtrain.ops.explain import explain_run
    from slurmtrain.store.find import find_run

    found = explain_run(find_run(open_store(store), run), ask_slurm(), time.time())
    if as_json:
        print_json(found.to_dict())
        return
    if found.slurm_error:
        say_note(f"{found.slurm_error}; shown is what the journal knows")
    screen = _Screen(shutil.get_terminal_size((100, 40)).columns if sys.stdout.isatty() else 100)
    for line in screen.timeline(found) if timeline else screen.explanation(found):
        print_text(line)


class _Screen:
    """Lines of text for one width."""

    def __init__(self, width: int) -> None:
        self._width = max(40, min(width, 140))

    def explanation(self, found: Explanation) -> Iterator[str]:
        status = found.status
        head = f"{clean(status.run_id)}: {status.state.value}"
        more = [f"job {status.job_id}"] if status.job_id else []
        more += [f"attempt {status.attempt}"] if status.attempt is not None else []
        more += [f"launch {status.launch}"] if status.launch is not None else []
        lines = list(self._wrap(", ".join([head, *more]), "  "))
        colour = _COLOURS.get(status.state.value)
        yield lines[0].replace(head, click.style(head, fg=colour, bold=True), 1)
        yield from lines[1:]
        yield from self._wrap(found.headline, "")
        yield from self._block("Found", self._trouble(found))
        yield from self._evidence(found)
        yield from self._block("Decided", self._decided(found))
        yield from self._block("", [self._budgets(found)] if found.trouble or found.decision else [])
        yield from self._block("Avoided", [self._avoided(node) for node in found.avoided[:_SHOWN_NODES]])
        yield from self._block("Done", [found.carried_out] if found.carried_out else [])
        yield from self._block("Checkpoint", [found.checkpoint] if found.checkpoint else [])
        yield from self._block("Advice", [found.advice] if found.advice else [])
        yield from self._block("Next", [f"{s.command}   ({s.text})" if s.command else s.text for s in found.steps])
        yield from self._story(found.launches)
        yield from self._block("To", [f"restarted as run {name}" for name in found.restarted_as])
        yield from self._block("From", [f"restarted from run {found.restarted_from}"] if found.restarted_from else [])
        yield from self._block("Damage", found.damage)

    def _trouble(self, found: Explanation) -> list[str]:
        trouble = found.trouble
        if trouble is None:
            return []
        from slurmtrain.core.causes import CAUSES

        cause = CAUSES.get(trouble.cause)
        parts = [f"{trouble.cause}: {cause.summary if cause else trouble.sentence}"]
        if trouble.rank is not None or trouble.node:
            rank = "" if trouble.rank is None else f"rank {trouble.rank}"
            parts.append(f"first failing: {' on '.join(filter(None, [rank, trouble.node and f'node {trouble.node}']))}")
        elif (first := found.first_exit) is not None:
            rank = "a task" if first.rank is None else f"rank {first.rank}"
            node = f" on node {first.node}" if first.node else ""
            how = f"signal {first.signal}" if first.signal is not None else f"exit code {first.exit_code}"
            parts.append(f"first to end: {rank}{node} with {how}")
        if found.trouble_in is not None:
            attempt, launch = found.trouble_in
            parts.append(f"attempt {attempt}" + (f" launch {launch}" if launch >= 0 else ""))
        if isinstance(trouble.confidence, (int, float)) and trouble.confidence:
            parts.append(f"confidence {trouble.confidence:.0%}")
        return ["; ".join(parts), *(f"note: {note}" for note in trouble.notes[:3])]

    def _evidence(self, found: Explanation) -> Iterator[str]:
        """Log lines, each under its file and line number, cut to what fits."""
        room = (self._width - _LABEL) * _TEXT - 4
        last_place = ""
        for line in found.evidence:
            place = f"{line.file} (its last lines)" if line.line is None else f"{line.file}:{line.line}"
            if place != last_place:
                yield " " * _LABEL + click.style(clean(place), dim=True)
                last_place = place
            text = clean(line.text)
            text = text if len(text) <= room else text[: room - 1] + "…"
            for part in textwrap.wrap(text, self._width - _LABEL - 2) or [""]:
                yield " " * _LABEL + "| " + part

    def _decided(self, found: Explanation) -> list[str]:
        decision = found.decision
        if decision is None:
            return []
        text = decision.action.value.replace("_", " ")
        text += f" (by the {found.decided_by})" if found.decided_by else ""
        text += f": {decision.reason}" if decision.reason else ""
        details = [f"without {', '.join(decision.exclude)}"] if decision.exclude else []
        details += [f"after {decision.delay_s} s"] if decision.delay_s else []
        details += [f"waits for {decision.waits_for}, `slurmtrain release` lets it start"] if decision.waits_for else []
        details += ["the newest checkpoint is set aside"] if decision.rollback else []
        return [text + (f" [{'; '.join(details)}]" if details else "")]

    def _avoided(self, avoided: Avoided) -> str:
        until = time.strftime("%d %b %H:%M", time.localtime(avoided.until))
        return clean(f"{avoided.node} until {until}: {avoided.cause} ({avoided.reason})")

    def _budgets(self, found: Explanation) -> str:
        shown = []
        for use in found.budgets:
            name, _, cause = use.name.partition(":")
            words = _BUDGETS[name].format(f"{use.used:g}", "?" if use.allowed is None else f"{use.allowed:g}")
            shown.append(f"{words} for {cause}" if cause else words)
        return "used: " + ", ".join(shown)

    def _story(self, rows: Sequence[LaunchRow]) -> Iterator[str]:
        shown = list(rows)
        left_out = len(rows) - _SHOWN_FIRST - _SHOWN_LAST
        if left_out > 0:
            shown = [*rows[:_SHOWN_FIRST], *rows[-_SHOWN_LAST:]]
        lines = []
        for position, row in enumerate(shown):
            if left_out > 0 and position == _SHOWN_FIRST:
                lines.append(f"… {left_out} more (--json has all)")
            lines.append(self._launch(row))
        yield from self._block("Story", lines)

    def _launch(self, row: LaunchRow) -> str:
        number = f"{row.attempt}.{row.launch}" if row.launch is not None else f"{row.attempt}"
        where = f"job {row.job_id}" + (f" on {row.nodes}" if row.nodes else "")
        lasted = f" for {_duration(row.duration_s)}" if row.duration_s is not None else ""
        place = [f"rank {row.rank}"] if row.rank is not None else []
        place += [row.node] if row.node else []
        why = f", {row.cause}" + (f" ({', '.join(place)})" if place else "") if row.cause else ""
        then = f" → {row.decision}" if row.decision else ""
        return f"{number:<5} {_clock(row.started_at)}{lasted}, {where}: {row.outcome}{why}{then}"

    def timeline(self, found: Explanation) -> Iterator[str]:
        for entry in found.timeline:
            number = "" if entry.attempt < 0 else f"{entry.attempt}" + ("" if entry.launch < 0 else f".{entry.launch}")
            yield from self._wrap(f"{_clock(entry.at)}  {number:<5} {clean(entry.who):<8} {entry.what}", " " * 26)
        yield from self._block("Damage", found.damage)

    def _block(self, label: str, texts: Sequence[str]) -> Iterator[str]:
        for position, text in enumerate(texts):
            name = label if position == 0 else ""
            indent = " " * _LABEL
            body = list(self._wrap(text, indent, first=indent))
            padding = " " * (_LABEL - len(name))
            yield (click.style(name, bold=True) if name else "") + padding + body[0][_LABEL:]
            yield from body[1:]

    def _wrap(self, text: str, indent: str, first: str = "") -> Iterator[str]:
        safe = clean(text).replace("\n", " ")
        yield from textwrap.wrap(
            safe,
            self._width,
            initial_indent=first,
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        ) or [first]


def _clock(at: float | None) -> str:
    return time.strftime("%d %b %H:%M:%S", time.localtime(at)) if at is not None else "(no time)"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
