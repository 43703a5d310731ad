"""Why Slurm lets a job wait, in plain words, and whether waiting can ever help.

Source: ``job_state_reason_string`` in Slurm's ``src/common/slurm_protocol_defs.c`` (20.11 to 26.05) and man squeue, JOB
REASON CODES. Slurm appends free text (``ReqNodeNotAvail, UnavailableNodes:n7``) and writes blanks as underscores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """``helps``: True, it will start by itself; False, it never will; None, only if somebody changes something."""

    reason: str  # Slurm's word, bounded
    sentence: str
    helps: bool | None
    remedy: str = ""

    @property
    def verdict(self) -> str:
        """What waiting is good for, in a few words."""
        if self.helps is None:
            return "waiting helps only if somebody else acts"
        return "waiting helps" if self.helps else "waiting will never help"


_RELEASE = "`scontrol release JOB` lets it go"
_ASK = "ask the administrators"
_OWN = "it starts when jobs under the same limit end"
_Row = tuple[str, str, bool | None, str]

# The first pattern that matches from the beginning wins; {0} is the reason's own word.
_TABLE: tuple[_Row, ...] = (
    (r"(none|initialization|waitingforscheduling)?$", "the scheduler has not looked at it yet", True, ""),
    (r"priority", "jobs with a higher priority are before it", True, ""),
    (r"resources", "it waits for enough free nodes", True, ""),
    (r"dependencyneversatisfied", "the job it depends on can no longer end as asked", False, "submit it without"),
    (r"dependency", "it waits for the end of another job", True, ""),
    (r"begintime", "its start time has not come", True, ""),
    (r"cleaning", "Slurm cleans up after its last execution", True, ""),
    (
        r"jobholdmaxrequeue|launch failure limit exceeded",
        "Slurm requeued it as often as the site allows and holds it; its owner cannot release it",
        False,
        "`slurmtrain release RUN` submits a new job of the run",
    ),
    (r"jobheldadmin", "an administrator holds it", None, _ASK),
    (r"jobhelduser|job requeued in held state", "it is held until somebody releases it", None, _RELEASE),
    (
        r"launch failed requeued held|user env retrieval",
        "a node could not start it, so Slurm holds it",
        None,
        _RELEASE,
    ),
    (
        r"nodes required for job are down, drained or reserved for",  # Slurm does not tell which of the three
        "a partition with a higher priority has its nodes, or these are down or drained (`sinfo -R` lists those)",
        True,
        "",
    ),
    (
        r"reqnodenotavail|nodes required for job are",
        "a node that it needs is down, drained or reserved",
        None,
        "`sinfo -R` says why; ask for other nodes, or wait until they are back",
    ),
    (r"partitionnodelimit", "it asks for more nodes than the partition has or allows", False, "ask for fewer nodes"),
    (r"partitiontimelimit", "it asks for more time than the partition allows", False, "ask for less time"),
    (
        r"partitionconfig",  # also where more nodes are asked for than the partition has (22.05)
        "the partition cannot give what it asks for",
        None,
        "compare it with `sinfo -o '%P %D %c %m %G %l'`; more nodes than the partition has never come",
    ),
    (r"partition(down|inactive)", "the partition takes no jobs at the moment", None, _ASK),
    (r"badconstraints", "no node fits what it asks for", False, "compare it with `sinfo -o '%P %D %c %m %G %f'`"),
    (r"invalid|\w*notallowed", "its account, partition or QOS is not allowed ({0})", False, "use another"),
    (r"reservationdeleted|resvdelhold|resv", "its reservation no longer exists", False, "submit it without"),
    (r"reservation", "its reservation has not begun", True, ""),
    (r"licenses", "all licenses that it needs are in use", True, ""),
    (r"jobarraytasklimit", "as many tasks of the array run as may run at once", True, ""),
    (r"burstbuffer", "its data is being staged in", True, ""),
    (r"prolog", "the site's prolog still runs", True, ""),
    (r"scheddefer", "the scheduler has put it off for the moment", True, ""),
    (
        r"(assoc|qos)(grp|max)\w*(minutes|runmin\w*|wall)limit|(assoc|qos)grp\w*(billing|minutes)|qosusagethreshold",
        "the compute budget of its account or QOS is spent ({0})",
        None,
        "`sshare` shows it; it refills with time, or the administrators raise it",
    ),
    (
        r"(assoc|qos)?\w*max\w*(perjob|pernode|wallduration)\w*|(assoc|qos)\w*min\w*|associationtimelimit|qostimelimit"
        r"|(assoc|qos)maxwall\w*|maxmemperlimit",
        "one job of its account or QOS may not ask for so much ({0})",
        False,
        "ask for less, or use another account or QOS",
    ),
    (
        r"(assoc|qos|max|grp)\w*",
        "its user, account or QOS has as much running as it may have ({0})",
        True,
        _OWN,
    ),
    (r"deadline", "it cannot end before its deadline", False, "submit it again"),
    (r"nodedown|frontenddown", "a node that it needs is down", None, _ASK),
    (r"systemfailure", "a part of Slurm or the file system failed", None, _ASK),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), sentence, helps, remedy) for pattern, sentence, helps, remedy in _TABLE)
_MAX_REASON = 200
_FOR_GOOD = ("jobholdmaxrequeue", "launch failure limit exceeded")


def explain_waiting(reason: str) -> Waiting:
    """What a pending job's reason means. An unknown reason is passed on in Slurm's words."""
    bounded = reason.strip().strip("()")[:_MAX_REASON]
    text = bounded.replace("_", " ").lower()
    found = re.match(r"\w*", bounded, re.ASCII)
    word = found[0] if found else ""
    for pattern, sentence, helps, remedy in _COMPILED:
        if pattern.match(text):
            return Waiting(bounded, sentence.format(word) + _nodes_of(bounded), helps, remedy)
    return Waiting(bounded, f"Slurm gives the reason {bounded!r}", None, "")


def is_held_for_good(reason: str) -> bool:
    """Whether Slurm holds the job because it was requeued too often: only an administrator can release it."""
    return reason.strip().strip("()").replace("_", " ").lower().startswith(_FOR_GOOD)


def _nodes_of(reason: str) -> str:
    """The nodes that Slurm names in ``UnavailableNodes:…``."""
    found = re.search(r"UnavailableNodes:([A-Za-z0-9._,\[\]-]+)", reason)
    return f" ({found[1]})" if found else ""
