"""``slurmtrain stop``: a run saves and ends because a person wants it."""

from __future__ import annotations

import click

from slurmtrain.cli.output import clean, print_json, print_text, say_error
from slurmtrain.cli.runs import (
    ask_slurm,
    dry_run_option,
    find_named,
    json_option,
    open_store,
    person,
    runs_argument,
    store_option,
)

_EXAMPLES = """\b
Examples:
  slurmtrain stop RUN                    save a checkpoint and leave; a waiting job is cancelled at once
  slurmtrain stop RUN --now              do not wait for a checkpoint
  slurmtrain stop RUN1 RUN2 -m "wrong learning rate"
  slurmtrain stop ARRAY                  all runs of an array; ARRAY-3 is one of them
  slurmtrain stop RUN && slurmtrain wait RUN"""


@click.command("stop", epilog=_EXAMPLES)
@runs_argument(required=True)
@click.option("--now", is_flag=True, help="Cancel the job at once; what was not saved is lost.")
@click.option("-m", "--reason", default="", metavar="TEXT", help="Why, for those who read it later.")
@dry_run_option
@json_option("Print a list with one object for each run.")
@store_option
def command(runs: tuple[str, ...], now: bool, reason: str, dry_run: bool, as_json: bool, store: str | None) -> int:
    """Ask runs to save and stop; nothing restarts them. Stopping a run that has ended changes nothing."""
    from slurmtrain.errors import SlurmtrainError
    from slurmtrain.ops.status import Sight, see_jobs
    from slurmtrain.ops.stop import Way, Wish, announce_stop, choose_way, describe_plan, stop_run
    from slurmtrain.ops.timeline import read_view

    slurm = ask_slurm()
    views = [read_view(run) for run in find_named(open_store(store), runs)]
    sights, _ = see_jobs(views, slurm)
    wish = Wish(person(), clean(reason).replace("\n", " ")[:500], at_once=now)
    rows: list[dict[str, object]] = []
    exit_code = 0
    if len(views) > 1 and not dry_run:
        announce_stop(views, wish)
    # Those that wait first: a running task that ends gives its place in the array to one that waits.
    views.sort(key=lambda view: choose_way(view, sights.get(view.run.run_id, Sight()), wish) is not Way.CANCEL)
    for view in views:
        sight = sights.get(view.run.run_id, Sight())
        row: dict[str, object] = {"run_id": view.run.run_id, "settled": False, "error": None}
        try:
            if dry_run:
                row["did"] = describe_plan(view, choose_way(view, sight, wish))
            else:
                stopped = stop_run(view, sight, slurm, wish)
                row |= {"did": stopped.sentence, "settled": stopped.settled}
        except SlurmtrainError as exc:
            row |= {"did": "", "error": str(exc)}
            exit_code = exit_code or exc.exit_code
            say_error(str(exc))
        rows.append(row)
        if not as_json and row["did"]:
            print_text(clean(f"would stop: {row['did']}" if dry_run else str(row["did"])))
    if as_json:
        print_json(rows)
    return exit_code
