"""How the tasks of a step ended, from what srun prints: the only place that says it per task.

With ``--kill-on-bad-exit`` srun's own exit code is that of the peers it killed; the first of these lines in time names
the culprit. Source: src/srun and src/common/slurm_protocol_defs.c of 22.05 to 26.05 (``srun: error: n2: task 3:
Exited with exit code 7``, ``srun: error: n1: tasks 0-1: Terminated``).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping

from slurmtrain.core.facts import RankExit
from slurmtrain.core.nodeset import expand_nodes

_LINE = re.compile(r"(?:^|\s)srun: error: ([\w.\-\[\],]{1,255}): tasks? ([0-9][0-9,\-]{0,4000}): (.{1,120})")
_EXITED = re.compile(r"Exited with exit code ([0-9]{1,3})\b")
_MAX_TASKS = 65536

# strsignal() in the C locale; srun adds "(core dumped)".
_SIGNAL_OF_WORDS = {
    "hangup": signal.SIGHUP,
    "interrupt": signal.SIGINT,
    "quit": signal.SIGQUIT,
    "illegal instruction": signal.SIGILL,
    "trace/breakpoint trap": signal.SIGTRAP,
    "aborted": signal.SIGABRT,
    "bus error": signal.SIGBUS,
    "floating point exception": signal.SIGFPE,
    "killed": signal.SIGKILL,
    "user defined signal 1": signal.SIGUSR1,
    "segmentation fault": signal.SIGSEGV,
    "user defined signal 2": signal.SIGUSR2,
    "broken pipe": signal.SIGPIPE,
    "alarm clock": signal.SIGALRM,
    "terminated": signal.SIGTERM,
    "cpu time limit exceeded": signal.SIGXCPU,
    "file size limit exceeded": signal.SIGXFSZ,
}


def parse_rank_exits(lines: Iterable[str], offsets: Mapping[str, int] | None = None) -> list[RankExit]:
    """Ended tasks in the order srun printed them; a task that is named again keeps its first end.

    ``offsets`` (node → number) are added to the tasks' numbers: in heterogeneous jobs srun counts per component.
    """
    found: dict[int, RankExit] = {}
    for order, (node, tasks, words) in enumerate(_matches(lines)):
        code, signal_number = _parse_end(words)
        offset = _offset_of(node, offsets) if offsets else 0
        for task in (number + offset for number in _expand_tasks(tasks)):
            found.setdefault(task, RankExit(task, node if "[" not in node else None, code, signal_number, order))
            if len(found) >= _MAX_TASKS:
                return list(found.values())
    return list(found.values())


def _offset_of(nodes: str, offsets: Mapping[str, int]) -> int:
    """All nodes of one message belong to one component."""
    try:
        names = expand_nodes(nodes)
    except ValueError:
        return 0
    return next((offsets[name] for name in names if name in offsets), 0)


def _matches(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for line in lines:
        match = _LINE.search(line[:6000])
        if match:
            yield match.group(1), match.group(2), match.group(3)


def _parse_end(words: str) -> tuple[int | None, int | None]:
    exited = _EXITED.search(words)
    if exited:
        return int(exited.group(1)), None
    plain = words.replace("(core dumped)", "").strip().lower()
    if plain == "out of memory":
        return None, int(signal.SIGKILL)
    number = _SIGNAL_OF_WORDS.get(plain)
    return None, int(number) if number is not None else None


def _expand_tasks(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            continue
        yield from range(int(first), min(int(last) if dash else int(first), int(first) + _MAX_TASKS) + 1)
