"""The page ``docs/ownership.md``, made from the tables of ``core.ownership`` and ``core.endings``.

``python -m slurmtrain.cli.ownership_page > docs/ownership.md``
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.core.endings import ROWS, Row
from slurmtrain.core.ownership import COMES_BACK, GONE, LATER, RULES, UNKNOWN, Rule

_HEAD = """# Whose decision it is

Each end of a launch, an attempt or a job has exactly one owner of the decision. This page is generated from
`slurmtrain/core/ownership.py` and `slurmtrain/core/endings.py`; a test keeps it in step, and each row of the second
part has a test on a real Slurm.

- **agent**: in the batch script of this very execution
- **gate**: of the next execution, before it trains
- **watcher**: `slurmtrain watch`, from outside, once no script is left
- **person**: somebody has to release the job
- **nobody**: not now; the next look at Slurm knows more

## By Slurm's word

The first line that fits counts. An execution is a job id and a restart count.

| Slurm says | owner | why |
|---|---|---|"""
_SPECIAL = {
    LATER: "a higher restart count",
    GONE: "nothing: the job is unknown",
    COMES_BACK: "PREEMPTED, and the job may be requeued",
    UNKNOWN: "anything else",
}


def build_page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    for rule in (LATER, GONE, COMES_BACK, *RULES, UNKNOWN):
        yield f"| {_words(rule)} | {rule.owner.value} | {rule.why} |"
    yield "\n## By what happened\n\n`state` is what Slurm says when the decision is due."
    for group in dict.fromkeys(row.group for row in ROWS):
        yield f"\n### {group}\n\n| what | still alive | state | owner | what follows |\n|---|---|---|---|---|"
        yield from (_row(row) for row in ROWS if row.group == group)


def _words(rule: Rule) -> str:
    if rule in _SPECIAL:
        return _SPECIAL[rule]
    return ", ".join([*sorted(flag.value for flag in rule.flags), *sorted(base.value for base in rule.bases)])


def _row(row: Row) -> str:
    state = (row.state or "unknown job") + (" (a later execution)" if row.later else "")
    return f"| {row.what} | {row.alive} | {state} | {row.owner.value} | {row.follows} |"


if __name__ == "__main__":
    import click

    click.echo(build_page(), nl=False)
