"""The page ``docs/causes.md``, made from the table of causes.

``python -m slurmtrain.cli.causes_page > docs/causes.md``
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.core.causes import CAUSES, FAMILIES, Cause

_HEAD = """# Causes

Every diagnosis is one of these. This page is generated from `slurmtrain/core/taxonomy`; a test keeps it in step.
"""
_RUNGS = {
    "in_place": "restart in place",
    "requeue": "requeue",
    "requeue_exclude": "requeue without the node",
    "rollback": "roll back one checkpoint and requeue",
    "stop": "stop",
    "none": "nothing",
}


def build_page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    for family in FAMILIES:
        yield f"## {family}\n"
        for cause in CAUSES.values():
            if cause.family == family:
                yield from _section(cause)


def _section(cause: Cause) -> Iterator[str]:
    budget = "the infrastructure budget" if cause.infrastructure else "the user's budget"
    yield f"### {cause.name}\n"
    yield f"{cause.summary[0].upper()}{cause.summary[1:]} ({cause.klass}).\n"
    yield f"{cause.advice}\n"
    retry = f"First: {_RUNGS[cause.first_rung]}" + (f"; uses {budget}" if cause.retryable else "")
    yield f"{retry}.\n"


if __name__ == "__main__":
    import click

    click.echo(build_page(), nl=False)
