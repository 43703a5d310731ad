"""``slurmtrain checkpoints``: a run's checkpoints, newest first, and whether they are whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.output import clean, print_json
from slurmtrain.cli.runs import json_option, open_store, run_argument, store_option

if TYPE_CHECKING:
    from slurmtrain.checkpoints.find import Found
    from slurmtrain.checkpoints.model import Verdict

_EXAMPLES = """\b
Examples:
  slurmtrain checkpoints RUN
  slurmtrain checkpoints RUN --deep         read every byte that has a checksum
  slurmtrain checkpoints RUN --json | jq -r '.[] | select(.resume).path'"""


@click.command("checkpoints", epilog=_EXAMPLES)
@run_argument
@click.option("--deep", is_flag=True, help="Read every byte that has a checksum, not only the first 64 MiB.")
@click.option(
    "-n", "--last", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Only the newest."
)
@json_option("Print one JSON list.")
@store_option
def command(run: str, deep: bool, last: int, as_json: bool, store: str | None) -> None:
    """List a run's checkpoints with a verdict about each; mark the one that the next launch resumes from."""
    from slurmtrain.checkpoints.apart import check_apart
    from slurmtrain.checkpoints.find import checkpoint_dir, list_all
    from slurmtrain.checkpoints.model import RESUMABLE
    from slurmtrain.checkpoints.own import OWN_FORMATS
    from slurmtrain.errors import NotFoundError
    from slurmtrain.ops.timeline import find_plan
    from slurmtrain.store.find import find_run

    found = find_run(open_store(store), run)
    plan = find_plan(found)
    if plan is None:
        raise NotFoundError(
            f"run {found.run_id} has no readable plan.json, so it is not known where its checkpoints are"
        )
    spec = plan.spec.checkpoint
    rows, resume = [], None
    listed, left_out = list_all(found.path, spec)
    if left_out:
        click.echo(f"warning: {clean(left_out)}", err=True)
    for one in listed[:last]:
        limit_s = {"limit_s": 86400.0} if deep else {}
        own = found.path / OWN_FORMATS
        verdict = check_apart(one.path, deep=deep, marker=spec.marker, parts=one.parts, own=own, **limit_s)
        if resume is None and (verdict.health in RESUMABLE or not spec.check):
            resume = one
        rows.append((one, verdict))
        if not as_json:
            click.echo(_line(one, verdict, resume is one))
    if as_json:
        print_json([_to_dict(one, verdict, resume is one) for one, verdict in rows])
    elif not rows:
        click.echo(f"no checkpoint in {clean(str(checkpoint_dir(found.path, spec)))}", err=True)


def _line(found: Found, verdict: Verdict, resume: bool) -> str:
    age = max(0.0, time.time() - found.modified)
    ago = f"{age:.0f} s" if age < 120 else f"{age / 60:.0f} min" if age < 7200 else f"{age / 3600:.0f} h"
    step = verdict.step if verdict.step is not None else found.step
    shown = "?" if step is None else step
    text = f"{'→' if resume else ' '} {clean(found.path.name):<32} step {shown:<9} {ago:>8} ago  "
    text += f"{verdict.health.value:<10} {verdict.format}"
    return text + (f"  {clean(verdict.detail)}" if verdict.detail else "")


def _to_dict(found: Found, verdict: Verdict, resume: bool) -> dict[str, object]:
    return {
        "path": str(found.path),
        "step": verdict.step if verdict.step is not None else found.step,
        "written_at": found.modified,
        "health": verdict.health.value,
        "format": verdict.format,
        "detail": verdict.detail,
        "deep": verdict.deep,
        "resume": resume,
    }
