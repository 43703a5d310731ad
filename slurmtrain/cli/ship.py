"""``slurmtrain ship``: send what belongs to a run to remote storage."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.output import clean, print_json, say_error, say_note
from slurmtrain.cli.runs import dry_run_option, find_named, json_option, open_store, runs_argument, store_option

if TYPE_CHECKING:
    from slurmtrain.core.spec import Ship
    from slurmtrain.ops.shipping.report import Report
    from slurmtrain.ops.shipping.shipper import Order
    from slurmtrain.remote.pace import Pace
    from slurmtrain.store.rundir import RunDir

_PATIENCE_S = 120.0  # with a storage that is busy, before a person is told to try again
_WAIT_S = 75.0  # for another shipper's turn: longer than the lease of one that died

_EXAMPLES = """\b
Examples:
  slurmtrain ship RUN                          send what is missing, once
  slurmtrain ship RUN --follow                 until the run is over and all of it is there
  slurmtrain ship RUN --to s3://bucket/runs    for a run whose job file has no ship
  slurmtrain ship RUN --to file:///archive/me --checkpoints 2
  slurmtrain ship --all                        every run of the store that has something to send
  slurmtrain ship --all --expire --dry-run     which remote copies are older than ship.keep_days and ship.keep_runs"""


@click.command("ship", epilog=_EXAMPLES)
@runs_argument(required=False)
@click.option("--all", "every", is_flag=True, help="All runs of the store with ship in their job file.")
@click.option("--follow", is_flag=True, help="Go on until the run is over and all of it is there.")
@click.option("--to", "url", metavar="URL", help="Where to, instead of the job file's ship.url.")
@click.option("--endpoint", metavar="URL", help="Address of an S3 server that is not AWS.")
@click.option("--rate", metavar="RATE", help="At most so much, like 20MB/s.")
@click.option("--checkpoints", type=click.IntRange(1, 1000), metavar="N", help="The newest N valid checkpoints, too.")
@click.option("--expire", is_flag=True, help="Delete remote copies of runs beyond ship.keep_days and ship.keep_runs.")
@click.option("--in-job", is_flag=True, hidden=True)
@dry_run_option
@json_option("Print a list with one object for each run.")
@store_option
def command(
    runs: tuple[str, ...],
    every: bool,
    follow: bool,
    url: str | None,
    endpoint: str | None,
    rate: str | None,
    checkpoints: int | None,
    expire: bool,
    in_job: bool,
    dry_run: bool,
    as_json: bool,
    store: str | None,
) -> int:
    """Send logs, scenes and records of runs (and checkpoints, where asked for) to the storage of ship.url.

    What is there already is not sent again. Interrupted at any moment, the next call goes on. Credentials come from the
    environment or from a profile, as for any program of that storage.
    """
    if bool(runs) == every:
        raise click.UsageError("name runs, or say --all")
    if follow and (every or len(runs) > 1):
        raise click.UsageError("--follow is for one run")
    folder = open_store(store)
    asked = _read_options(url, endpoint, rate, checkpoints)
    targets = _all_of(folder, due=not expire) if every else find_named(folder, runs)
    if in_job:
        return _ship_in_job(targets[0], asked)
    if expire:
        return _expire(targets, asked, as_json=as_json, dry_run=dry_run)
    if dry_run:
        return _tell_plan(targets, asked, as_json=as_json)
    return _ship_all(targets, asked, follow=follow, as_json=as_json, quiet=every)


def _read_options(
    url: str | None, endpoint: str | None, rate: str | None, checkpoints: int | None
) -> dict[str, object]:
    """What the command line says instead of the job file, read as a job file is."""
    from slurmtrain.config import shipping
    from slurmtrain.config.nodes import Place, Scalar

    readers = {"url": (shipping.url, url, "--to"), "endpoint": (shipping.endpoint, endpoint, "--endpoint")}
    readers["rate"] = (shipping.rate, rate, "--rate")
    asked: dict[str, object] = {} if checkpoints is None else {"checkpoints": checkpoints}
    for key, (read, text, option) in readers.items():
        if text is not None:
            try:
                asked[key] = read(Scalar(text, Place(option)))
            except ValueError as exc:
                raise click.UsageError(f"{option}: {exc}") from exc
    return asked


def _all_of(store: Path, *, due: bool) -> list[RunDir]:
    """The runs of the store whose job file ships; ``due``: that have something to send."""
    import time

    from slurmtrain.ops.shipping.shipper import is_due
    from slurmtrain.ops.timeline import find_plan
    from slurmtrain.store.rundir import runs_of

    if due:
        return [run for run in runs_of(store) if run.ship.is_dir() and is_due(run.path, time.time())]
    return [run for run in runs_of(store) if (plan := find_plan(run)) is not None and plan.spec.ship.url is not None]


def _order(run: RunDir, asked: dict[str, object], *, in_job: bool = False) -> Order:
    import dataclasses

    from slurmtrain.errors import UsageError
    from slurmtrain.ops.shipping.shipper import Order

    plan = run.read_plan()
    ship: Ship = dataclasses.replace(plan.spec.ship, **asked)  # type: ignore[arg-type]
    if "checkpoints" in asked and "checkpoints" not in ship.what:
        ship = dataclasses.replace(ship, what=(*ship.what, "checkpoints"))
    if ship.url is None:
        raise UsageError(f"{run.run_id} has no ship.url in its job file: say where to, like --to s3://bucket/prefix")
    return Order(run, plan, ship, dict(os.environ), in_job)


def _ship_in_job(run: RunDir, asked: dict[str, object]) -> int:
    """Beside the training: at low priority, what is told goes to the job's log, TERM asks for a last pass."""
    from slurmtrain.ops.shipping.shipper import Shipper, make_pace

    os.nice(10)
    _end_with_parent()

    def tell(text: str) -> None:
        click.echo(f"slurmtrain: shipping: {clean(text)}")

    order = _order(run, asked, in_job=True)
    pace = make_pace(order.ship, float(order.ship.every_s), lambda _text: None)
    _leave_on_signal(pace)
    Shipper(order, pace, tell).follow()
    return 0


def _end_with_parent() -> None:
    """TERM when the agent dies: its successor starts a shipper of its own (PR_SET_PDEATHSIG, linux/prctl.h)."""
    import contextlib
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)


def _ship_all(targets: list[RunDir], asked: dict[str, object], *, follow: bool, as_json: bool, quiet: bool) -> int:
    from slurmtrain.errors import SlurmtrainError
    from slurmtrain.ops.shipping.ledger import read_state
    from slurmtrain.ops.shipping.shipper import TakenOverError
    from slurmtrain.remote.pace import StoppedError

    rows: list[dict[str, object]] = []
    exit_code = 0
    for run in targets:
        row: dict[str, object] = {"run_id": run.run_id, "url": None, "complete": False, "error": None}
        told = read_state(run.ship).problem if quiet else ""
        try:
            order = _order(run, asked)
            row["url"] = f"{order.url}/{run.run_id}"
            report = _ship_one(order, follow=follow, wait=not quiet)
            row |= _facts(report)
            if not as_json and not quiet:
                click.echo(clean(_sentence(row, report)))
        except TakenOverError as exc:
            row["error"] = str(exc)
            if not quiet:
                say_note(f"{exc}: nothing was sent from here")
        except SlurmtrainError as exc:
            row["error"] = str(exc)
            exit_code = exit_code or exc.exit_code
            if str(exc) != told:  # a watcher's log needs each trouble once
                say_error(f"{run.run_id}: {exc}")
        except StoppedError:
            raise KeyboardInterrupt from None
        rows.append(row)
    if as_json:
        print_json(rows)
    return exit_code


def _ship_one(order: Order, *, follow: bool, wait: bool) -> Report | None:
    from slurmtrain.ops.shipping.keep import expire_remote
    from slurmtrain.ops.shipping.shipper import Shipper, make_pace

    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            say_note(text)

    pace = make_pace(order.ship, _PATIENCE_S, tell)
    _leave_on_signal(pace)
    shipper = Shipper(order, pace, tell)
    report = shipper.follow() if follow else shipper.ship(wait_s=_WAIT_S if wait else 0.0)
    if report is not None and report.complete:
        report.notes += [f"{gone.run_id} expired there" for gone in expire_remote(order, pace)]
    return report


def _leave_on_signal(pace: Pace) -> None:
    def on_signal(_number: int, _frame: FrameType | None) -> None:
        pace.stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)


def _facts(report: Report | None) -> dict[str, object]:
    if report is None:
        return {}
    return {
        "sent": report.sent,
        "sent_bytes": report.sent_bytes,
        "unchanged": report.unchanged,
        "deleted": report.deleted,
        "complete": report.complete,
        "late": report.late,
        "notes": report.notes,
    }


def _sentence(row: dict[str, object], report: Report | None) -> str:
    if report is None:
        return f"{row['run_id']}: nothing was sent"
    size = report.sent_bytes
    shown = f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size} bytes"
    text = f"{row['run_id']}: sent {report.sent} objects ({shown}) to {row['url']}"
    text += f", {report.unchanged} were there" if report.unchanged else ""
    for note in report.notes:
        text += f"; {note}"
    if report.late:
        text += f"; {len(report.late)} changed while they were read and come with the next call"
    return text + ("; the run is over and its copy complete" if report.complete else "")


def _tell_plan(targets: list[RunDir], asked: dict[str, object], *, as_json: bool) -> int:
    """What belongs to the copy; the storage is not asked."""
    from slurmtrain.ops.shipping.items import find_items
    from slurmtrain.ops.shipping.ledger import read_state

    rows = []
    for run in targets:
        order = _order(run, asked)
        items = find_items(run.path, order.ship)
        rows.append({"run_id": run.run_id, "url": f"{order.url}/{run.run_id}", "files": [item.key for item in items]})
        if not as_json:
            state = read_state(run.ship)
            so_far = "complete" if state.complete else state.problem or "not complete"
            click.echo(
                clean(f"{run.run_id}: {len(items)} files belong into {order.url}/{run.run_id} (so far: {so_far}):")
            )
            click.echo("".join(f"  {clean(item.key)}\n" for item in items), nl=False)
    if as_json:
        print_json(rows)
    return 0


def _expire(targets: list[RunDir], asked: dict[str, object], *, as_json: bool, dry_run: bool) -> int:
    from slurmtrain.ops.shipping.keep import expire_remote
    from slurmtrain.ops.shipping.shipper import make_pace

    rows: list[dict[str, object]] = []
    done: set[str] = set()
    for run in targets:
        order = _order(run, asked)
        if order.url in done:
            continue
        done.add(order.url)
        pace = make_pace(order.ship, _PATIENCE_S, say_note)
        _leave_on_signal(pace)
        for gone in expire_remote(order, pace, dry_run=dry_run):
            rows.append({"run_id": gone.run_id, "url": order.url, "objects": gone.objects, "why": gone.why})
            if not as_json:
                word = "would delete" if dry_run else "deleted"
                click.echo(clean(f"{word} {gone.objects} objects of {gone.run_id} in {order.url}: {gone.why}"))
    if as_json:
        print_json(rows)
    return 0
