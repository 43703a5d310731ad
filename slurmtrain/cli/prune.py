"""``slurmtrain prune``: old runs go, by age, size and number; what is kept and why is said."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.output import clean, print_json, say_note
from slurmtrain.cli.runs import (
    ask_slurm,
    dry_run_option,
    find_named,
    json_option,
    load_here,
    person,
    runs_argument,
    store_option,
)
from slurmtrain.core.sizes import say_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slurmtrain.config.settings import Settings
    from slurmtrain.core.retention import Limits
    from slurmtrain.ops.prune import Row
    from slurmtrain.store.rundir import RunDir

_EXAMPLES = """\b
Examples:
  slurmtrain prune --older-than 30d --dry-run
  slurmtrain prune --older-than 30d --keep-last 200 --max-size 2T
  slurmtrain prune --checkpoints 2        of ended runs keep the two newest valid checkpoints
  slurmtrain prune --pin RUN              never delete this run
  slurmtrain prune                        delete nothing; make few files of the many of ended runs"""

_SHOWN = 20  # runs that stay, one line each


@click.command("prune", epilog=_EXAMPLES)
@runs_argument(required=False)
@click.option("--older-than", metavar="AGE", help="Runs that ended longer ago, like 30d.")
@click.option("--max-size", metavar="SIZE", help="The oldest, until all runs together take no more, like 2T.")
@click.option("--keep-last", metavar="N", help="All but the last N that ended.")
@click.option(
    "--checkpoints", type=click.IntRange(1), metavar="N", help="Of each ended run keep the N newest valid checkpoints."
)
@click.option("--outside", is_flag=True, help="With --checkpoints: also those outside run directories.")
@click.option("--pin", is_flag=True, help="Keep these runs for good.")
@click.option("--unpin", is_flag=True, help="Take that back.")
@dry_run_option
@json_option("Print one JSON object: what became of each run.")
@store_option
def command(
    runs: tuple[str, ...],
    older_than: str | None,
    max_size: str | None,
    keep_last: str | None,
    checkpoints: int | None,
    outside: bool,
    pin: bool,
    unpin: bool,
    dry_run: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Delete ended runs beyond the limits that are given here or under [prune] in the settings.

    Kept in any case: runs that have not ended, pinned ones, the newest valid checkpoint of each run, and each run until
    7 days, its time limit and twice its longest wait for a retry are over.
    """
    from slurmtrain.ops.prune import Wanted, prune, summarize
    from slurmtrain.store.rundir import runs_of

    settings = load_here(store)
    limits = _limits(settings, older_than=older_than, max_size=max_size, keep_last=keep_last)
    if outside and checkpoints is None:
        raise click.UsageError("--outside says where checkpoints may be deleted; give --checkpoints N, too")
    if pin or unpin:
        _pin(find_named(settings.store, runs), pin=pin, unpin=unpin)
        return
    chosen = find_named(settings.store, runs) if runs else runs_of(settings.store)
    wanted = Wanted(limits, checkpoints, outside, dry_run)
    rows = prune(settings.store, chosen, ask_slurm(), wanted, time.time())
    if as_json:
        print_json(summarize(rows))
    else:
        _print(rows, limits, dry_run=dry_run)
    if any(row.problem for row in rows):
        raise SystemExit(1)


def _limits(settings: Settings, **given: str | None) -> Limits:
    """The command line's limits; those that it does not give come from the settings."""
    from slurmtrain.config.limits import LIMITS
    from slurmtrain.core.retention import Limits

    values: dict[str, Any] = dict(settings.prune)
    for name, text in given.items():
        if text is not None:
            values[name] = _parse(LIMITS[name], text, name)
    return Limits(values.get("older_than"), values.get("max_size"), values.get("keep_last"))


def _parse(parse: Callable[[str], int], text: str, name: str) -> int:
    try:
        return parse(text)
    except ValueError as exc:
        raise click.UsageError(f"--{name.replace('_', '-')}: {exc}") from None


def _pin(runs: Sequence[RunDir], *, pin: bool, unpin: bool) -> None:
    from slurmtrain.errors import StoreError

    if not runs or (pin and unpin):
        raise click.UsageError("name the runs to --pin or to --unpin")
    for run in runs:
        try:
            if pin:
                run.pinned_file.write_text(f"{person()}\n")
            else:
                run.pinned_file.unlink(missing_ok=True)
        except OSError as exc:
            raise StoreError(f"cannot write {run.pinned_file}: {exc.strerror or exc}") from exc
        click.echo(f"{run.run_id}: {'pinned' if pin else 'not pinned any more'}")


def _print(rows: Sequence[Row], limits: Limits, *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    gone = [row for row in rows if row.action in {"deleted", "trimmed"} or row.freed]
    for row in gone:
        word = row.action if row.action != "kept" else "thinned out"
        left = f"; left: {', '.join(row.kept[:4])}" if row.kept else ""
        click.echo(clean(f"{row.run_id}: {would}{word}, {say_size(row.freed)}: {row.why}{left}"))
    tidied = sum(1 for row in rows if row.action == "compacted" and not row.problem)
    if tidied:
        click.echo(f"{tidied} ended run{'s' if tidied != 1 else ''}: small files {would}joined")
    for row in rows:
        if row.problem:
            say_note(f"{row.run_id}: {row.problem}")
    _print_kept([row for row in rows if row not in gone])
    click.echo(f"{say_size(sum(row.freed for row in rows))} {would}freed")
    if copies := sum(1 for row in rows if row.remote and row.action in {"deleted", "trimmed"}):
        say_note(
            f"{copies} of them ha{'s' if copies == 1 else 've'} a remote copy, which stays: "
            "`slurmtrain ship --all --expire --dry-run` names the copies beyond ship.keep_days and ship.keep_runs"
        )
    if not limits.any:
        say_note("no limit was given, so no run is deleted: --older-than 30d, --max-size 2T, --keep-last 200")


def _print_kept(rows: Sequence[Row]) -> None:
    """Few: one line each. Many: how many for which reason."""
    if len(rows) <= _SHOWN:
        for row in rows:
            click.echo(clean(f"{row.run_id}: kept: {row.why}"))
        return
    reasons = Counter(row.why for row in rows)
    for why, count in reasons.most_common(_SHOWN):
        click.echo(clean(f"{count} kept: {why}"))
    if len(reasons) > _SHOWN:
        click.echo(
            f"and {sum(reasons.values()) - sum(n for _, n in reasons.most_common(_SHOWN))} more (--json lists all)"
        )
