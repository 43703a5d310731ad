"""Which rank caused it: not the one that reported first, where all that is printed are consequences.

In order: what a program says about the ranks that are missing, the rank whose collectives lag behind, the failure that
a launcher observed first, the one rank that says nothing while all others complain, the task that Slurm saw end first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurmtrain.core.blame import task_numbers
from slurmtrain.core.diagnosis.select import ROOT, Evidence
from slurmtrain.core.facts import Facts
from slurmtrain.core.findings import Finding

# Causes that name what the others noticed: the rank that prints such a line is not the one that is at fault.
CONSEQUENCES = frozenset(("nccl_timeout", "peer_lost", "rendezvous_timeout", "hang_no_progress", "nccl_system_error"))
WAITED = frozenset(("nccl_timeout", "rendezvous_timeout", "hang_no_progress"))
SAME_MOMENT_S = 1.0  # torchrun prints whole seconds
FEWEST_REPORTS = 2
MAX_NAMED = 8

_SIGNALS = {-4: "SIGILL", -6: "SIGABRT", -7: "SIGBUS", -8: "SIGFPE", -9: "SIGKILL", -11: "SIGSEGV"}


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank, the node it ran on as far as the same source tells, and how it was found out (None: its own line)."""

    rank: int | None
    node: str | None = None
    how: str | None = None


def find_culprit(finding: Finding | None, evidence: Evidence, facts: Facts) -> Culprit:
    """The rank that caused what the finding shows."""
    if finding is None or finding.kind == "stop":
        return Culprit(None)
    if finding.cause in WAITED or (finding.cause in CONSEQUENCES and finding.weight < ROOT):
        return _behind_the_victims(finding, evidence, facts)
    if finding.rank is not None:
        return Culprit(finding.rank)
    enough = min(finding.weight, ROOT)
    same = [
        item
        for item in evidence.causes
        if item.cause == finding.cause and item.rank is not None and item.weight >= enough
    ]
    if same:
        return Culprit(min(same, key=lambda item: item.line).rank)
    if finding.weight < ROOT and finding.kind != "launcher":
        return Culprit(None)
    observed = observed_first(evidence)
    return Culprit(observed.rank) if observed is not None else _first_to_exit(evidence, facts)


def _behind_the_victims(finding: Finding, evidence: Evidence, facts: Facts) -> Culprit:
    victims = {item.rank for item in evidence.causes if item.cause in CONSEQUENCES and item.rank is not None}
    for found in (_named_absent(evidence), _lagging(evidence) if finding.cause in WAITED else None):
        if found is not None:
            return found
    silent = _silent(victims, evidence, facts)
    observed = observed_first(evidence)
    if finding.cause == "peer_lost":
        for found in (_observed(observed, victims), silent, _ended_first(victims, evidence, facts)):
            if found is not None:
                return found
        if observed is not None:
            return Culprit(observed.rank, observed.values.get("host"))
        return Culprit(finding.rank)
    if silent is not None:
        return silent
    return Culprit(None if finding.rule == "nccl-watchdog" else finding.rank)


def _observed(item: Finding | None, victims: Iterable[int]) -> Culprit | None:
    """The launcher's first failure, unless that rank ended as a victim too: by an abort, or after its own complaint."""
    if item is None:
        return None
    code = _code(item)
    if code == -6 or (item.rank in set(victims) and code >= 0):
        return None
    words = f"exit code {code}" if code >= 0 else f"killed by {_SIGNALS.get(code, f'signal {-code}')}"
    return Culprit(item.rank, item.values.get("host"), f"the launcher saw it end first ({words})")


def observed_first(evidence: Evidence) -> Finding | None:
    """The first failure of torchrun's summaries (of several nodes' the earliest that no SIGTERM explains) or of spawn.

    On the other nodes the agent ends its own ranks by SIGTERM and calls that the root cause.
    """
    listed = [item for item in evidence.launcher if item.rule == "torchrun-failed-rank"]
    if not listed and not evidence.multi_node:
        return next((item for item in evidence.launcher if item.rule == "spawn-failed-process"), None)
    roots = [item for item in listed if "root" in item.values] or _last_of_each(listed)
    free = [item for item in roots if _code(item) != -15] or [item for item in listed if _code(item) != -15]
    if not free:
        return None
    if len(free) == 1:
        return free[0]
    if any(item.time is None for item in free):
        return None
    first = min(item.time or 0.0 for item in free)
    together = [item for item in free if (item.time or 0.0) <= first + SAME_MOMENT_S]
    return min(together, key=lambda item: (_as_consequence(_code(item)), item.time or 0.0, item.line))


def _last_of_each(listed: Sequence[Finding]) -> list[Finding]:
    """Of each launcher the failure listed last: the root cause in summaries whose head is lost."""
    last: dict[object, Finding] = {}
    for item in sorted(listed, key=lambda item: item.last_line):
        last[(item.file, item.stream)] = item
    return list(last.values())


def _code(item: Finding) -> int:
    try:
        return int(item.values.get("exitcode", "1"))
    except ValueError:
        return 1


def _as_consequence(code: int) -> int:
    """How likely an exit is a consequence: a kill from outside least, then an error, an abort by a watchdog most."""
    return 2 if code == -6 else 0 if code < 0 else 1


def _named_absent(evidence: Evidence) -> Culprit | None:
    for item in sorted(evidence.notices, key=lambda item: item.line):
        ranks = _numbers(item.values.get("absent") or item.values.get("task", ""))
        if ranks:
            return Culprit(ranks[0], how=_absent_words(ranks))
    return None


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.replace(",", " ").split() if part.isdigit()]


def _absent_words(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return "the others say that it did not take part"
    more = ", …" if len(ranks) > MAX_NAMED else ""
    return f"the others say that ranks {', '.join(map(str, ranks[:MAX_NAMED]))}{more} did not take part"


def _lagging(evidence: Evidence) -> Culprit | None:
    """The rank whose collective is the oldest, when the ranks of one process group are not in step."""
    work: dict[str, dict[int, tuple[int, int]]] = {}
    seen: dict[str, dict[int, tuple[int, int]]] = {}
    for item in (*evidence.causes, *evidence.notices):
        if item.rank is None or not item.values.get("seq", "").lstrip("-").isdigit():
            continue
        done = item.values.get("done", "")
        table = seen if item.rule == "nccl-watchdog" else work
        number = (int(item.values["seq"]), int(done) if done.lstrip("-").isdigit() else 0)
        ranks = table.setdefault(item.values.get("group", ""), {})
        ranks[item.rank] = max(ranks.get(item.rank, number), number)
    for table in (work, seen):
        for ranks in table.values():
            newest = set(ranks.values())
            if len(newest) > 1:
                rank = min(ranks, key=lambda rank: (ranks[rank], rank))
                return Culprit(rank, how=f"its collectives lag behind ({ranks[rank][0]} of {max(newest)[0]})")
    return None


def _silent(victims: set[int], evidence: Evidence, facts: Facts) -> Culprit | None:
    """The one rank that says nothing while all others complain."""
    size = world_size(evidence, facts)
    spoke = {item.rank for item in (*evidence.causes, *evidence.survived) if item.rank is not None}
    missing = [rank for rank in range(min(size, 100_000)) if rank not in spoke]
    if len(victims) < FEWEST_REPORTS or len(missing) != 1:
        return None
    return Culprit(missing[0], how=f"it is the only one of {size} ranks that says nothing")


def world_size(evidence: Evidence, facts: Facts) -> int:
    """The number of ranks, as far as the facts, the programs, the files and the prefixes tell."""
    sizes = [int(item.values["size"]) for item in evidence.notices if item.values.get("size", "").isdigit()]
    if facts.rank_nodes:
        sizes.append(max(facts.rank_nodes) + 1)
    if facts.nnodes and facts.local_world_size:
        sizes.append(facts.nnodes * facts.local_world_size)
    for log in evidence.logs:
        sizes += [log.max_rank + 1, (log.file_rank if log.file_rank is not None else -1) + 1]
    return max(sizes, default=0)


def _ended_first(victims: set[int], evidence: Evidence, facts: Facts) -> Culprit | None:
    """A task that Slurm saw end before any other, killed or with a code and without a word: its peers end after it."""
    if tasks_differ(evidence):
        return None
    exits = sorted(facts.rank_exits, key=lambda item: item.order)
    if exits and exits[0].rank is not None:
        first = exits[0]
        if first.signal in (9, 11, 7, 4, 8):
            return Culprit(first.rank, first.node, "Slurm saw it end first, killed by a signal")
        return _left_without_a_word(first.rank, first.node, first.exit_code or 0, victims)
    end = min(evidence.ends, key=lambda item: item.line, default=None)
    tasks = task_numbers(end.values.get("tasks", "")) if end is not None else set()
    if end is None or len(tasks) != 1:
        return None
    (task,), node, how = tasks, end.values.get("node"), end.values.get("how", "")
    if how.startswith(("Killed", "Segmentation", "Bus")):
        return Culprit(task, node, "Slurm saw it end first, killed by a signal")
    code = how.removeprefix("Exited with exit code ")
    return _left_without_a_word(task, node, int(code) if code.isdecimal() and len(code) < 4 else 0, victims)


def _left_without_a_word(rank: int | None, node: str | None, code: int, victims: set[int]) -> Culprit | None:
    """Where the victims' ranks are known, and it is none of them; 143 is how a victim ends that was told to."""
    if not victims or rank in victims or code in (0, 128 + 15):
        return None
    return Culprit(rank, node, f"Slurm saw it end first (exit code {code}), without a word why")


def tasks_differ(evidence: Evidence) -> bool:
    """Whether srun's tasks are launchers of several ranks, or count per component: their numbers are no ranks."""
    return any(log.tasks_differ for log in evidence.logs)


def _first_to_exit(evidence: Evidence, facts: Facts) -> Culprit:
    if tasks_differ(evidence):
        return Culprit(None)
    for item in sorted(facts.rank_exits, key=lambda item: item.order):
        if item.rank is not None and (item.exit_code or item.signal not in (None, 0, 9, 15)):
            return Culprit(item.rank)
    for end in evidence.ends:
        tasks = task_numbers(end.values.get("tasks", ""))
        if len(tasks) == 1 and not end.values.get("how", "").startswith(("Killed", "Terminated")):
            return Culprit(next(iter(tasks)))
    return Culprit(None)
