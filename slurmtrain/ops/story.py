"""A run's story for a person: what it waited for and how long, each launch, each cause, each decision with its rung."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, RunState
from slurmtrain.core.jobstate import is_waiting, parse_job_state
from slurmtrain.core.spec import Retry
from slurmtrain.core.timetext import say_duration
from slurmtrain.core.waiting import explain_waiting
from slurmtrain.ops.timeline import BAD_VALUES, RunView, as_time, describe

_BY_ITSELF = frozenset({"", "None", "Priority", "Resources", "Initialization", "WaitingForScheduling"})
_SHORT_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One thing that happened. ``attempt`` and ``launch`` are -1 where it belongs to none; ``path`` is to be opened.

    ``kind``: ``submitted``, ``started``, ``stage``, ``launch``, ``ended``, ``cause``, ``decided``, ``done``, ``noted``,
    ``person`` or ``more`` (stands for attempts that were left out).
    """

    at: float | None
    attempt: int
    launch: int
    kind: str
    text: str
    path: str = ""

    @property
    def number(self) -> str:
        """``attempt.launch`` as far as there is one."""
        return "" if self.attempt < 0 else f"{self.attempt}" + ("" if self.launch < 0 else f".{self.launch}")

    def to_dict(self) -> dict[str, Any]:
        numbers = {"attempt": self.attempt, "launch": self.launch}
        return {**asdict(self), **{key: None if value < 0 else value for key, value in numbers.items()}}


def say_share(share: float) -> str:
    """In percent; what is little is not nothing."""
    return f"{share:.0%}" if share >= 0.01 else "< 1%"


def without_sentence(reason: str, sentence: str) -> str:
    """A decision's reason without the diagnosis that it repeats: what is new in it."""
    rest = reason.removeprefix(sentence) if sentence else reason
    return rest.lstrip(";:,. ") or reason


def tell_story(view: RunView, retry: Retry | None) -> list[StoryLine]:
    """All of it, in the journal's order. Never raises for what the journal holds."""
    teller = _Teller(view, retry or Retry())
    lines: list[StoryLine] = []
    for event in view.events:
        try:
            lines += teller.tell(event)
        except BAD_VALUES:
            lines.append(teller.noted(event, f"{event.kind}: unreadable"))
    return lines


def shorten_story(lines: Sequence[StoryLine], first: int, last: int) -> list[StoryLine]:
    """The first and the last attempts in full, one line for those between them."""
    numbers = sorted({line.attempt for line in lines if line.attempt >= 0})
    left_out = set(numbers[first : len(numbers) - last]) if len(numbers) > first + last + 1 else set()
    if not left_out:
        return list(lines)
    shown: list[StoryLine] = []
    for line in lines:
        if line.attempt not in left_out:
            shown.append(line)
        elif not shown or shown[-1].kind != "more":
            shown.append(_summary([one for one in lines if one.attempt in left_out], line, len(left_out)))
    return shown


def _summary(lines: Sequence[StoryLine], begins: StoryLine, attempts: int) -> StoryLine:
    causes = Counter(line.text.partition(":")[0] for line in lines if line.kind == "cause")
    found = ", ".join(f"{count} × {cause}" for cause, count in causes.most_common(4))
    launches = sum(line.kind == "launch" for line in lines)
    text = f"… {attempts} more attempts with {launches} launches" + (f": {found}" if found else "")
    return replace(begins, kind="more", launch=-1, text=text, path="")


class _Teller:
    """Keeps what a line needs from the events before it."""

    def __init__(self, view: RunView, retry: Retry) -> None:
        self._view = view
        self._retry = retry
        self._free_since: float | None = None
        self._reasons: list[str] = []
        self._sentence = ""  # of the newest diagnosis
        self._rungs: Counter[tuple[str, int]] = Counter()
        self._tellers: Mapping[type[ev.Event], Any] = {
            ev.RunCreated: self._created,
            ev.Submitted: self._submitted,
            ev.JobSeen: self._seen,
            ev.AttemptStarted: self._started,
            ev.LaunchStarted: self._launched,
            ev.LaunchEnded: self._ended,
            ev.Diagnosed: self._diagnosed,
            ev.SceneTaken: self._scene_taken,
            ev.Decided: self._decided,
            ev.CameBack: self._came_back,
        }
        self._kinds = {
            ev.StageStarted: "stage", ev.StageEnded: "stage", ev.Acted: "done", ev.StopRequested: "person",
            ev.Released: "person", ev.Restarted: "person",
        }  # fmt: skip

    def tell(self, event: ev.Event) -> Iterator[StoryLine]:
        teller = self._tellers.get(type(event))
        if teller is not None:
            yield from teller(event)
        else:
            yield self._line(event, self._kinds.get(type(event), "noted"), describe(event))
        if isinstance(event, (ev.LaunchEnded, ev.Decided, ev.Acted, ev.AttemptEnded, ev.Released)):
            self._free_since = as_time(event.at)

    def noted(self, event: ev.Event, text: str) -> StoryLine:
        return self._line(event, "noted", text)

    def _line(self, event: ev.Event, kind: str, text: str, path: str = "") -> StoryLine:
        return StoryLine(as_time(event.at), event.attempt, event.launch, kind, text, path)

    def _created(self, event: ev.RunCreated) -> Iterator[StoryLine]:
        self._free_since = as_time(event.at)
        yield self._line(event, "submitted", f"asked for by {event.user} on {event.host}")

    def _submitted(self, event: ev.Submitted) -> Iterator[StoryLine]:
        self._free_since = as_time(event.at)
        again = " again" if event.submission else ""
        yield self._line(event, "submitted", f"submitted{again} as job {event.job_id}")

    def _seen(self, event: ev.JobSeen) -> Iterator[StoryLine]:
        if is_waiting(parse_job_state(event.state)) and event.reason not in self._reasons:
            self._reasons.append(event.reason)
        yield from ()

    def _started(self, event: ev.AttemptStarted) -> Iterator[StoryLine]:
        at = as_time(event.at)
        waited = at - self._free_since if at is not None and self._free_since is not None else None
        words = f"job {event.job_id} starts on {event.nodes or 'no node'}"
        if waited is not None and waited >= _SHORT_WAIT_S:
            words += f" after {say_duration(waited)} of waiting"
            told = [explain_waiting(reason).sentence for reason in self._reasons if reason not in _BY_ITSELF]
            told += ["free nodes"] if not told and "Resources" in self._reasons else []
            told += ["jobs with a higher priority"] if not told and "Priority" in self._reasons else []
            words += f" ({'; '.join(dict.fromkeys(told))})" if told else ""
        self._reasons.clear()
        yield self._line(event, "started", words)

    def _came_back(self, event: ev.CameBack) -> Iterator[StoryLine]:
        yield self._line(event, "noted", f"Slurm's clean-up took {event.clean_up_s:.0f} s of the wait")

    def _launched(self, event: ev.LaunchStarted) -> Iterator[StoryLine]:
        path = str(event.resume_from or "")
        words = f"resumes from {path.rpartition('/')[2]}" if path else "begins without a checkpoint"
        yield self._line(event, "launch", f"launch {event.launch} {words}", path)

    def _ended(self, event: ev.LaunchEnded) -> Iterator[StoryLine]:
        words = "finished" if event.done else f"exit code {event.exit_code}"
        words += f" after {say_duration(event.duration_s)}"
        words += f", asked to leave ({event.stop_reason})" if event.stop_reason else ""
        words += f", at step {event.step}" if event.step is not None else ""
        words += f"; {event.saved}" if event.saved else ""
        yield self._line(event, "ended", words)

    def _diagnosed(self, event: ev.Diagnosed) -> Iterator[StoryLine]:
        found = event.diagnosis
        rank = f"rank {found['rank']}" if found.get("rank") is not None else ""
        node = str(found["node"]) if found.get("node") else ""
        where = " on ".join(filter(None, [rank, node]))
        self._sentence = sentence = str(found.get("sentence") or "")
        where = "" if all(part in sentence for part in where.split(" on ")) else where
        text = f"{found.get('cause', 'unknown')}: {sentence}".rstrip(": ")
        path = self._below(str(found.get("file") or ""))
        line = found.get("line")
        path += f":{line}" if path and isinstance(line, int) and line > 0 else ""
        yield self._line(event, "cause", f"{text} [{where}]" if where else text, path)

    def _scene_taken(self, event: ev.SceneTaken) -> Iterator[StoryLine]:
        words = f"the scene was kept on {event.nodes} of {event.of} nodes in {say_duration(event.duration_s)}"
        yield self._line(event, "noted", words + (f" ({event.detail})" if event.detail else ""), event.path)

    def _below(self, path: str) -> str:
        """A file of the run as seen from its directory."""
        return path.removeprefix(f"{self._view.run.path}/")

    def _decided(self, event: ev.Decided) -> Iterator[StoryLine]:
        data = event.decision
        action = str(data.get("action", "?"))
        reason = without_sentence(str(data.get("reason") or ""), self._sentence)
        extra = [f"without {', '.join(map(str, data['exclude'][:8]))}"] if data.get("exclude") else []
        extra += [f"after {data['delay_s']} s"] if data.get("delay_s") else []
        extra += ["from an older checkpoint"] if data.get("rollback") else []
        extra += [rung] if (rung := self._rung(event, action, str(data.get("budget", "none")))) else []
        words = f"→ {action.replace('_', ' ')}" + (f" ({', '.join(extra)})" if extra else "")
        yield self._line(event, "decided", f"{words}: {reason}" if reason else words)

    def _rung(self, event: ev.Decided, action: str, budget: str) -> str:
        """Which of how many of its kind this is."""
        if action == Action.RESTART_IN_PLACE.value:
            key, most = ("in_place", event.attempt), self._retry.in_place
        elif action == Action.REQUEUE.value and budget in {"program", "infrastructure"}:
            key, most = (budget, -1), self._retry.requeues if budget == "program" else self._retry.infrastructure
        else:
            return "uses no budget" if action == Action.REQUEUE.value else ""
        self._rungs[key] += 1
        return f"{self._rungs[key]} of {most}"


def tone_of(state: RunState) -> str:
    """How a state is told: ``good``, ``bad``, ``wait`` or ``busy``."""
    if state is RunState.COMPLETED:
        return "good"
    if state in {RunState.FAILED, RunState.TERMINATED}:
        return "bad"
    return "busy" if state in {RunState.RUNNING, RunState.STARTING} else "wait"
