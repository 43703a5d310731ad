"""``slurmtrain watch``: look after all runs of a store."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.output import clean
from slurmtrain.cli.runs import ask_slurm, open_store

if TYPE_CHECKING:
    from slurmtrain.core.events import Event
    from slurmtrain.watch.loop import Watcher

_EXAMPLES = """\b
Examples:
  slurmtrain watch                        look every 60 s until Ctrl-C
  slurmtrain watch --once                 one look, e.g. from cron
  slurmtrain watch --as-job -p cpu        a small job looks, until no run is left
  slurmtrain watch --print-unit systemd   a unit to install; also: cron, scrontab
  slurmtrain watch --observe-only         write down what happens, act on nothing"""
_SHIP_S = 60.0  # that `watch --once` waits for what is being sent
_JOB_OPTIONS = ("partition", "account", "qos", "time")


@click.command("watch", epilog=_EXAMPLES)
@click.option("--once", is_flag=True, help="Look once and leave.")
@click.option(
    "--interval",
    "interval_s",
    default=60.0,
    show_default=True,
    type=click.FloatRange(1, 86400),
    help="Seconds between two looks; jobs that end wake the watcher earlier.",
)
@click.option("--observe-only", is_flag=True, help="Write down what is seen; decide and do nothing.")
@click.option("--as-job", is_flag=True, help="Submit a job of one CPU that watches until no run is left.")
@click.option(
    "--print-unit",
    type=click.Choice(("systemd", "cron", "scrontab")),
    help="Print what starts the watcher by itself, with absolute paths.",
)
@click.option("-p", "--partition", metavar="NAME", help="Partition of the job (--as-job, --print-unit scrontab).")
@click.option("-A", "--account", metavar="NAME", help="Its account.")
@click.option("-q", "--qos", metavar="NAME", help="Its quality of service.")
@click.option("-t", "--time", metavar="LIMIT", help="Its time limit (--as-job: 1 day, then it requeues itself).")
@click.option("--dry-run", is_flag=True, help="With --as-job: print the job's script, submit nothing.")
@click.option("--in-job", is_flag=True, hidden=True)
@click.option("--store", type=click.Path(file_okay=False), help="Where the runs are kept.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as one JSON line.")
def command(
    once: bool,
    interval_s: float,
    observe_only: bool,
    as_job: bool,
    print_unit: str | None,
    dry_run: bool,
    in_job: bool,
    store: str | None,
    as_json: bool,
    **job: str | None,
) -> None:
    """Look after all runs: decide about jobs whose script is dead, carry out what was decided and not done.

    The jobs recover by themselves from most failures; the watcher covers what no script survives (a lost node, a killed
    or purged job) and mends Slurm's requeue delay. One squeue for all runs at each look. Watchers of one store take
    turns, so that several do no harm.
    """
    if sum((once, as_job, print_unit is not None, in_job)) > 1:
        raise click.UsageError("--once, --as-job and --print-unit are three ways to watch; choose one")
    asked = {name: value for name in _JOB_OPTIONS if (value := job.get(name)) is not None}
    if asked and not as_job and print_unit != "scrontab":
        raise click.UsageError(f"--{next(iter(asked))} is for --as-job and --print-unit scrontab")
    if dry_run and not as_job:
        raise click.UsageError("--dry-run is for --as-job; to look and do nothing there is --observe-only")
    folder = open_store(store)
    if print_unit is not None:
        _print_unit(print_unit, folder, interval_s, asked)
    elif as_job:
        _submit_job(folder, interval_s, asked, dry_run=dry_run)
    else:
        watcher = _make_watcher(folder, interval_s, observe_only, as_json)
        (_look_once if once else _watch_in_job if in_job else _watch)(watcher)


def _make_watcher(folder: Path, interval_s: float, observe_only: bool, as_json: bool) -> Watcher:
    from slurmtrain.watch.loop import Watcher

    def tell(run_id: str, what: Event | str) -> None:
        click.echo(_line(run_id, what, as_json), err=isinstance(what, str))

    return Watcher(folder, ask_slurm(), interval_s, observe_only, tell)


def _look_once(watcher: Watcher) -> None:
    from slurmtrain.errors import SlurmUnavailableError
    from slurmtrain.watch.lease import Lease

    if not watcher.store.exists():
        click.echo(f"no runs in {clean(str(watcher.store))}; `slurmtrain submit` makes one", err=True)
        return
    lease = Lease(watcher.store, 60)
    result = watcher.look_once(lease)
    if result.held_by:
        click.echo(f"another watcher ({result.held_by}) looks after {watcher.store}: nothing done", err=True)
        return
    lease.give_back()
    watcher.ship(_SHIP_S)
    if result.unknown:
        raise SlurmUnavailableError(result.unknown)


def _watch(watcher: Watcher) -> None:
    _listen(watcher.stop, signal.SIGTERM, signal.SIGINT)
    watcher.run()


def _watch_in_job(watcher: Watcher) -> None:
    from slurmtrain.watch.job import JobWatch, own_job_id

    job_id = own_job_id()
    if job_id is None:
        raise click.UsageError("--in-job is what --as-job runs inside its job; SLURM_JOB_ID is not set here")
    loop = JobWatch(watcher, watcher.slurm, job_id, click.echo)
    _listen(watcher.stop, signal.SIGTERM, signal.SIGINT)
    _listen(loop.warn, signal.SIGUSR2)
    loop.run()


def _listen(act: Callable[[], None], *numbers: signal.Signals) -> None:
    def on_signal(_number: int, _frame: FrameType | None) -> None:
        act()

    for number in numbers:
        signal.signal(number, on_signal)


def _print_unit(kind: str, folder: Path, interval_s: float, asked: Mapping[str, str]) -> None:
    from slurmtrain.watch.units import build_unit, find_installation

    click.echo(build_unit(kind, find_installation(folder, os.environ), interval_s, _directives(asked)), nl=False)


def _submit_job(folder: Path, interval_s: float, asked: Mapping[str, str], *, dry_run: bool) -> None:
    from slurmtrain.cli.slurm import open_slurm
    from slurmtrain.watch.job import TIME_LIMIT, build_job_script, find_watching_job, submit_watcher
    from slurmtrain.watch.units import find_installation

    limit = _time_limit(asked.get("time", TIME_LIMIT))
    others = _directives({name: value for name, value in asked.items() if name != "time"})
    script = build_job_script(find_installation(folder, os.environ), interval_s, limit, others)
    if dry_run:
        click.echo(script, nl=False)
        return
    slurm = open_slurm()
    if (there := find_watching_job(folder, slurm)) is not None:
        click.echo(f"job {there} watches {folder} already; `scancel {there}` ends it")
        return
    job_id = submit_watcher(folder, script, slurm)
    click.echo(f"job {job_id} looks after {folder} until no run is left; `scancel {job_id}` ends it for good")


def _time_limit(text: str) -> str:
    from slurmtrain.core.spec import parse_time_limit

    try:
        parse_time_limit(text)
    except ValueError as exc:
        raise click.UsageError(f"--time: {exc}") from exc
    return text


def _directives(asked: Mapping[str, str]) -> list[str]:
    from slurmtrain.render.quoting import quote_directive

    try:
        return [f"--{name}={quote_directive(value)}" for name, value in asked.items()]
    except ValueError as exc:
        raise click.UsageError(f"an option of the job is not one line: {exc}") from exc


def _line(run_id: str, what: Event | str, as_json: bool) -> str:
    import json
    import time

    from slurmtrain.core.events import event_to_dict

    if isinstance(what, str):
        return json.dumps({"run_id": run_id, "problem": what}) if as_json else f"{run_id or 'watch'}: {what}"
    if as_json:
        return json.dumps({"run_id": run_id, **event_to_dict(what)})
    stamp = time.strftime("%H:%M:%S", time.localtime(what.at))
    return f"{stamp} {run_id}: {describe(what)}"


def describe(event: Event) -> str:
    """One event in a few words."""
    from slurmtrain.core import events as ev

    if isinstance(event, ev.JobSeen):
        return f"job {event.job_id} is {event.state}" + (f" ({event.reason})" if event.reason else "")
    if isinstance(event, ev.Decided):
        return f"decided: {event.decision.get('action')} ({event.decision.get('reason')})"
    if isinstance(event, ev.Acted):
        return event.detail
    if isinstance(event, ev.Diagnosed):
        return f"found: {event.diagnosis.get('sentence') or event.diagnosis.get('cause')}"
    if isinstance(event, ev.AttemptEnded):
        return f"attempt {event.attempt} ended: {event.state}"
    return event.kind.replace("_", " ")
