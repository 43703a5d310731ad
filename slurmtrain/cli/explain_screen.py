"""What ``slurmtrain explain`` prints: first the answer, then the timeline, then where to look. Lines for one width."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.output import clean

if TYPE_CHECKING:
    from slurmtrain.core.avoid import Avoided
    from slurmtrain.ops.explain import Explanation
    from slurmtrain.ops.story import StoryLine

_LABEL = 12  # columns of the labels on the left
_TIMES = 16  # columns of the timeline's times, its numbers take five more
_SHOWN_FIRST, _SHOWN_LAST = 1, 3  # attempts of a long story
_MOST_LINES = 60  # of the timeline
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
_SHOWN_FINDINGS = 6
_COLOURS = {"Completed": "green", "Running": "green", "Failed": "red", "Terminated": "red", "Held": "yellow"}
_USES = (
    ("kept", "trained and kept"),
    ("lost", "trained and lost"),
    ("open", "training now"),
    ("unknown", "trained, not known whether kept"),
    ("starting", "starting"),
    ("restarting", "between launches"),
    ("waiting", "waiting for nodes"),
    ("held", "held"),
)


class Screen:
    """Lines of text for one width."""

    def __init__(self, width: int) -> None:
        self._width = max(40, min(width, 140))

    def explanation(self, found: Explanation) -> Iterator[str]:
        """The answer on one screen, the timeline of a short run, and paths."""
        yield from self._head(found)
        yield from self._block(
            "Before", [found.interruption.what, found.interruption.work] if found.interruption else []
        )
        yield from self._block("Found", self._trouble(found))
        yield from self._evidence(found)
        yield from self._block("Scene", self._scene(found))
        yield from self._block("Decided", self._decided(found))
        yield from self._block("", [self._budgets(found)] if found.trouble or found.decision else [])
        yield from self._block("Avoided", [self._avoided(node, found) for node in found.avoided[:_SHOWN_NODES]])
        yield from self._block("Done", [found.carried_out] if found.carried_out else [])
        yield from self._block("Advice", [found.advice] if found.advice else [])
        yield from self._next(found)
        yield ""
        yield from self._story(found)
        yield from self._block("Time", self._time(found))
        yield from self._places(found)
        yield from self._block("Copy", self._copy(found))
        yield from self._block("To", [f"restarted as run {name}" for name in found.restarted_as])
        yield from self._block("From", [f"restarted from run {found.restarted_from}"] if found.restarted_from else [])
        yield from self._block("Damage", found.damage)

    def _head(self, found: Explanation) -> Iterator[str]:
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

    def _next(self, found: Explanation) -> Iterator[str]:
        """What to do, and under it what to type."""
        for position, step in enumerate(found.steps):
            yield from self._block("" if position else "Next", [step.text + (":" if step.command else "")])
            if step.command:
                yield " " * _LABEL + "  " + click.style(clean(step.command), bold=True)

    def _trouble(self, found: Explanation) -> list[str]:
        from slurmtrain.core.causes import CAUSES
        from slurmtrain.ops.interruption import is_interruption

        trouble = found.trouble
        if trouble is None or is_interruption(trouble):
            return []
        cause = CAUSES.get(trouble.cause)
        told = trouble.sentence.lower() in found.headline.lower()  # what stands right above is not said again
        parts = [f"{trouble.cause}: {cause.summary if cause and told else trouble.sentence}"]
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

    def _scene(self, found: Explanation) -> list[str]:
        """What the nodes showed; what could not be looked at is on the page and in --json."""
        telling = [one for one in found.findings if one.weight != "info"]
        lines = [f"{one.where}: {one.text}" if one.where else one.text for one in telling[:_SHOWN_FINDINGS]]
        left_out = len(telling) - len(lines)
        return lines + ([f"… {left_out} more (--html and --json have all)"] if left_out else [])

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
        from slurmtrain.ops.story import without_sentence

        decision = found.decision
        if decision is None:
            return []
        text = decision.action.value.replace("_", " ")
        text += f" (by the {found.decided_by})" if found.decided_by else ""
        sentence = found.trouble.sentence if found.trouble is not None else ""
        text += f": {without_sentence(decision.reason, sentence)}" if decision.reason else ""
        details = [f"without {', '.join(decision.exclude)}"] if decision.exclude else []
        details += [f"after {decision.delay_s} s"] if decision.delay_s else []
        details += [f"waits for {decision.waits_for}, `slurmtrain release` lets it start"] if decision.waits_for else []
        details += ["the newest checkpoint is set aside"] if decision.rollback else []
        return [text + (f" [{'; '.join(details)}]" if details else "")]

    def _avoided(self, avoided: Avoided, found: Explanation) -> str:
        until = time.strftime("%d %b %H:%M", time.localtime(avoided.until))
        sentence = found.trouble.sentence if found.trouble is not None else ""
        reason = "" if sentence and sentence in avoided.reason else f" ({_cut(avoided.reason, 80)})"
        return clean(f"{avoided.node} until {until}: {avoided.cause}{reason}")

    def _budgets(self, found: Explanation) -> str:
        shown = []
        for use in found.budgets:
            name, _, cause = use.name.partition(":")
            words = _BUDGETS[name].format(f"{use.used:g}", "?" if use.allowed is None else f"{use.allowed:g}")
            shown.append(f"{words} for {cause}" if cause else words)
        return "used: " + ", ".join(shown)

    def _story(self, found: Explanation) -> Iterator[str]:
        from slurmtrain.ops.story import shorten_story

        lines = list(self._story_lines(shorten_story(found.story, _SHOWN_FIRST, _SHOWN_LAST), found.command))
        if len(lines) > _MOST_LINES + 1:
            cut = f"{'':{_LABEL}}… {len(lines) - _MOST_LINES} lines more: `slurmtrain explain --html` shows all"
            lines = [*lines[: _MOST_LINES // 3], cut, *lines[-(_MOST_LINES - _MOST_LINES // 3) :]]
        if lines:
            yield click.style("Timeline", bold=True)
        yield from lines

    def _story_lines(self, story: Sequence[StoryLine], command: str) -> Iterator[str]:
        day, number = "", ""
        for line in story:
            today = _day(line.at)
            when = f"{today if today != day else '':>6} {_hour(line.at)}"
            shown = line.number if line.number != number else ""
            day, number = today, line.number
            indent = " " * (_TIMES + 6)
            yield from self._wrap(line.text, indent + "  ", first=f"{when:<{_TIMES}}{shown:<5} ")
            if line.kind == "launch" and command:
                yield from self._wrap(
                    f"$ {_cut(command, 2 * (self._width - len(indent)) - 4)}", indent + "    ", first=indent
                )
                command = ""
            if line.path and line.kind == "cause":
                yield indent + click.style(clean(line.path), dim=True)

    def _time(self, found: Explanation) -> list[str]:
        """Where the time went; what a better checkpoint interval would be, where that can be told."""
        from slurmtrain.core.timetext import say_duration
        from slurmtrain.ops.story import say_share

        spent = {use.value: seconds for use, seconds in found.time.totals.items()}
        whole = found.time.whole_s
        if whole < 1:
            return []
        parts = [
            f"{say_duration(spent[use])} {words} ({say_share(spent[use] / whole)})"
            for use, words in _USES
            if spent.get(use, 0) >= 1
        ]
        texts = [f"{say_duration(whole)}: " + ", ".join(parts)]
        return texts + ([text] if (text := _interval(found)) else [])

    def _copy(self, found: Explanation) -> list[str]:
        """How far the remote copy is, and what sends the rest where nothing does."""
        from slurmtrain.ops.shipping.summary import say_copy

        copy = found.remote
        if copy is None:
            return []
        texts = [say_copy(copy)]
        texts += [f"checkpoints there: {', '.join(copy.checkpoints[-3:])}"] if copy.checkpoints else []
        texts += [copy.problem] if copy.problem else []
        if copy.behind and not copy.running and not found.status.nodes:
            texts.append(f"`slurmtrain ship {found.status.run_id}` sends what is missing")
        return texts

    def _places(self, found: Explanation) -> Iterator[str]:
        """Paths, each on a line of its own and never broken."""
        for place in found.places:
            label = place.what.capitalize()
            yield click.style(label, bold=True) + " " * (_LABEL - len(label)) + clean(place.path)

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


def _day(at: float | None) -> str:
    return time.strftime("%d %b", time.localtime(at)) if at is not None else ""


def _hour(at: float | None) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at)) if at is not None else "(no time)"


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(1, room - 1)] + "…"


def _interval(found: Explanation) -> str:
    """How often to save, from the measured failure rate and save time."""
    from slurmtrain.core.timetext import say_duration

    measured = found.time
    if measured.failure_every_s is None:
        return ""
    text = f"a failure every {say_duration(measured.failure_every_s)} of training"
    every = measured.save_every_s
    text += f", a checkpoint every {say_duration(every) if every >= 1 else 'moment'}" if every else ""
    if measured.suggested_s is None:
        return f"{text}; how long a save takes is not measured"
    if measured.save_s is not None and measured.save_s < 1:
        return f"{text}; a save takes less than a second: saving often costs little"
    return (
        f"{text}; a save takes about {say_duration(measured.save_s)}, so one every "
        f"{say_duration(measured.suggested_s)} would lose least (Young's rule)"
    )
