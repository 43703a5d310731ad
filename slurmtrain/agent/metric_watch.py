"""The user's metric rules while the training runs: a run that cannot come to anything is ended, not paid for."""

from __future__ import annotations

import time
from pathlib import Path

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.launch import LaunchProcess
from slurmtrain.agent.say import say
from slurmtrain.agent.stops import StopReason
from slurmtrain.core.rules import RuleSet
from slurmtrain.errors import StoreError
from slurmtrain.logs.deadline import DeadlineError, deadline
from slurmtrain.logs.matcher import Matcher
from slurmtrain.logs.scan import Scanner
from slurmtrain.ops.judge import load_frozen_rules

LOOK_S = 30.0
LOOK_BYTES = 32 << 20  # read at one look; what a faster log writes beyond it is read at the next
LOOK_TIME_S = 5.0


class MetricWatch:
    """Reads what a launch writes, where a rule with a metric and ``FailJob`` asks for it; else it does nothing."""

    def __init__(self, job: JobContext, launch: LaunchProcess) -> None:
        self._job = job
        self._launch = launch
        self._offsets = {launch.log_file: launch.log_offset}
        self._next_look = time.monotonic()
        try:
            rules = load_frozen_rules(job.run).rules
        except StoreError:
            rules = ()
        wanted = [rule for rule in rules if rule.metric is not None and rule.outcome == "FailJob"]
        self._matcher = Matcher(RuleSet.of(wanted)) if wanted else None
        self._scanners: dict[Path, Scanner] = {}  # one for each file: lines of two nodes are no neighbours

    def check(self) -> StopReason | None:
        """The reason to stop, once a rule's values are there."""
        if self._matcher is None or time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + LOOK_S
        try:
            with deadline(LOOK_TIME_S):
                for path in (self._launch.log_file, *self._launch.node_logs()):
                    self._read(path, self._matcher)
        except (DeadlineError, OSError) as exc:
            say(f"metric rules are not looked at any more in this launch: {exc}")
            self._matcher = None
            return None
        found = next((metric for scanner in self._scanners.values() if (metric := scanner.find_metric())), None)
        if found is None:
            return None
        grace = float(self._job.plan.spec.stop.grace_s)
        return StopReason("metric", time.time() + grace, grace, f"rule {found.rule!r} ends it: {found.text}")

    def _read(self, path: Path, matcher: Matcher) -> None:
        offset = self._offsets.get(path, 0)
        with path.open("rb") as stream:
            stream.seek(offset)
            data = stream.read(LOOK_BYTES)
        whole = data[: data.rfind(b"\n") + 1]  # the line that is being written is read at the next look
        self._offsets[path] = offset + len(whole)
        self._scanners.setdefault(path, Scanner(matcher, "log")).feed(whole)
