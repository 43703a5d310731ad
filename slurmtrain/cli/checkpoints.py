"""``slurmtrain checkpoints``: what the next launch resumes from and why, and a verdict about each checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.output import clean, print_json, say_note, show_name
from slurmtrain.cli.runs import json_option, open_store, run_argument, store_option
from slurmtrain.core.sizes import say_size
from slurmtrain.core.timetext import say_duration

if TYPE_CHECKING:
    from slurmtrain.core.decision import RunState
    from slurmtrain.ops.checkpoints import Listed, Look

_NAME, _DETAIL = 44, 100  # columns that a name and a sentence may take
_MOST_ASIDE = 10
_EXAMPLES = """\b
Examples:
  slurmtrain checkpoints RUN
  slurmtrain checkpoints RUN --deep         read every byte that has a checksum
  slurmtrain checkpoints RUN --json | jq -r .next.path"""


@click.command("checkpoints", epilog=_EXAMPLES)
@run_argument
@click.option("--deep", is_flag=True, help="Read every byte that has a checksum, not only the first 64 MiB.")
@click.option(
    "-n", "--last", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Only the newest."
)
@json_option("Print one JSON object.")
@store_option
def command(run: str, deep: bool, last: int, as_json: bool, store: str | None) -> None:
    """Say what the next launch of a run resumes from and why; list its checkpoints with a verdict about each.

    The arrow marks the one that a launch would take now. Nothing is moved or deleted.
    """
    from slurmtrain.errors import NotFoundError
    from slurmtrain.ops.checkpoints import list_checkpoints, look_at
    from slurmtrain.ops.timeline import find_plan, read_view
    from slurmtrain.store.find import find_run

    found = find_run(open_store(store), run)
    plan = find_plan(found)
    if plan is None:
        raise NotFoundError(
            f"run {found.run_id} has no readable plan.json, so it is not known where its checkpoints are"
        )
    spec, view = plan.spec.checkpoint, read_view(found)
    look = look_at(view, spec)
    if look.left_out:
        say_note(look.left_out)
    rows = list_checkpoints(view, spec, look, last=last, deep=deep)
    if as_json:
        listed = list(rows)
        print_json({"run_id": found.run_id, "pattern": spec.pattern, **_to_dict(look, listed)})
    else:
        listed = list(_print(look, rows, view.state.state, last))
    _warn(listed)


def _print(look: Look, rows: Iterator[Listed], state: RunState, last: int) -> Iterator[Listed]:
    """Line by line, each when it is known."""
    click.echo(f"Checkpoints in {show_name(str(look.folder))}")
    click.echo(f"{_whose(state)}: {_say_next(look)}")
    names = [_short(found.path.name) for found in look.found[:last]]
    width = max(map(len, names), default=0)
    if names:
        click.echo(f"\n  {'NAME':<{width}}  {'STEP':<9}  {'AGE':>10}  {'SIZE':>9}  CHECK")
    for name, row in zip(names, rows, strict=False):
        click.echo(_line(f"{name:<{width}}", row))
        yield row
    if len(look.found) > last:
        click.echo(f"  … {len(look.found) - last} older ones (-n shows more)")
    if look.kept_in is not None:
        kept = ", ".join(map(_short, sorted(look.kept)[:3]))
        click.echo(f"\nKept from deletion: {kept}, in {show_name(str(look.kept_in))}")
    _print_aside(look)


def _whose(state: RunState) -> str:
    """Who would resume: a run that has ended only goes on as another one."""
    from slurmtrain.core.decision import ENDED_STATES, RunState

    if state is RunState.COMPLETED:
        return "`slurmtrain restart --resume`"
    return "`slurmtrain restart`" if state in ENDED_STATES else "Next launch"


def _say_next(look: Look) -> str:
    found, why = look.next.found, clean(look.next.why).replace("\n", " ")
    if found is None:
        return f"from the beginning: {why}"
    step = f"step {look.next.step}, " if look.next.step is not None else ""
    return f"{_short(found.path.name)} ({step}{_age(found.modified)} old): {why}"


def _line(name: str, row: Listed) -> str:
    step = "?" if row.step is None else str(row.step)[:9]
    verdict = f"{row.verdict.health.value} ({row.verdict.format})" if row.verdict.format else row.verdict.health.value
    details = ["kept"] if row.kept else []
    details += [_cut(row.verdict.detail, _DETAIL)] if row.verdict.detail else []
    details += ["perhaps it is being written now"] if row.fresh else []
    text = f"{'→' if row.resume else ' '} {name}  {step:<9}  {_age(row.found.modified):>10}  {_size(row.size):>9}"
    return f"{text}  {'; '.join([verdict, *details])}"


def _print_aside(look: Look) -> None:
    places = sorted({row.path.parent for row in look.aside})
    if not places:
        return
    where = ", ".join(show_name(str(place)) for place in places[:3])
    click.echo(f"\nSet aside, in {where} (never deleted by slurmtrain):")
    for row in look.aside[:_MOST_ASIDE]:
        why = _cut(row.why, _DETAIL) if row.why else "not written down why"
        click.echo(f"  {_short(row.name)}, {_age(row.at)} ago, {_size(row.size)}: {why}")
    if len(look.aside) > _MOST_ASIDE:
        click.echo(f"  … {len(look.aside) - _MOST_ASIDE} earlier ones")


def _warn(rows: list[Listed]) -> None:
    """Where a closer look finds what a launch would not see."""
    from slurmtrain.checkpoints.model import BROKEN

    for row in rows:
        if row.resume and row.verdict.health in BROKEN:
            name = _short(row.found.path.name)
            say_note(
                f"{_cut(row.verdict.detail, _DETAIL)}; a launch would take {name} all the same, for it looks less "
                "closely or doubts the check: move it out of the folder to have the one before taken"
            )


def _short(name: str) -> str:
    """Quoted where it is no plain word; of a long one the end, for there stands the step."""
    shown = show_name(name)
    return shown if len(shown) <= _NAME else f"…{shown[1 - _NAME :]}"


def _cut(text: str, most: int) -> str:
    plain = clean(text).replace("\n", " ")
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def _size(size: int | None) -> str:
    return "?" if size is None else say_size(size)


def _age(at: float) -> str:
    return say_duration(time.time() - at)


def _to_dict(look: Look, rows: list[Listed]) -> dict[str, Any]:
    kept = {"folder": str(look.kept_in), "names": sorted(look.kept)} if look.kept_in is not None else None
    return {
        "folder": str(look.folder),
        "next": look.next.to_dict(),
        "checkpoints": [row.to_dict() for row in rows],
        "not_listed": len(look.found) - len(rows),
        "kept": kept,
        "set_aside": [row.to_dict() for row in look.aside],
    }
