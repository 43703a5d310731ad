"""``slurmtrain watch``: look after all runs of a store."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slurmtrain.core.events import Event

_EXAMPLES = """\b
Examples:
  slurmtrain watch                    look every 60 s until Ctrl-C
  slurmtrain watch --once             one look, e.g. from cron
  slurmtrain watch --observe-only     write down what happens, act on nothing"""


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
@click.option("--store", type=click.Path(file_okay=False), help="Where the runs are kept.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as one JSON line.")
def command(once: bool, interval_s: float, observe_only: bool, store: str | None, as_json: bool) -> None:
    """Look after all runs: decide about jobs whose script is dead, carry out what was decided and not done.

    The jobs recover by themselves from most failures; the watcher covers what no script survives (a lost node, a killed
    or purged job) and mends Slurm's requeue delay. One squeue for all runs at each look.
    """
    from slurmtrain.config.settings import load_settings
    from slurmtrain.errors import SlurmUnavailableError
    from slurmtrain.hosts.local import LocalHost
    from slurmtrain.slurm.cli_client import CliSlurmClient
    from slurmtrain.watch.lease import Lease
    from slurmtrain.watch.loop import Watcher

    def tell(run_id: str, what: Event | str) -> None:
        click.echo(_line(run_id, what, as_json), err=isinstance(what, str))

    folder = load_settings(os.environ, Path.cwd(), store=store).store
    watcher = Watcher(folder, CliSlurmClient(LocalHost()), interval_s, observe_only, tell)
    if once:
        lease = Lease(folder, 60)
        result = watcher.look_once(lease)
        if result.held_by:
            click.echo(f"another watcher ({result.held_by}) looks after {folder}: nothing done", err=True)
            return
        lease.give_back()
        if result.unknown:
            raise SlurmUnavailableError(result.unknown)
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        watcher.stop()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    watcher.run()


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
