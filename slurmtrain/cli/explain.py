"""``slurmtrain explain``: what happened to a run, where, what shows it, what was decided, what to do next."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.output import print_json, print_text, say_note
from slurmtrain.cli.runs import ask_slurm, json_option, load_here, open_store, run_argument, store_option

if TYPE_CHECKING:
    from slurmtrain.ops.explain import Explanation

_EXAMPLES = """\b
Examples:
  slurmtrain explain RUN             one screen
  slurmtrain explain 4711            the run of job 4711
  slurmtrain explain RUN --timeline  every event, with who wrote it
  slurmtrain explain RUN --html      one page for a browser, explain.html in the run's directory
  slurmtrain explain RUN --html --out ~/why.html
  slurmtrain explain RUN --json | jq .diagnosis"""


@click.command("explain", epilog=_EXAMPLES)
@run_argument
@click.option("--timeline", is_flag=True, help="Every event of the run instead.")
@click.option("--html", is_flag=True, help="Write one page that needs no network, and print where it is.")
@click.option("-o", "--out", metavar="FILE", help="With --html: write it there instead.")
@json_option("Print one JSON object.")
@store_option
def command(run: str, timeline: bool, html: bool, out: str | None, as_json: bool, store: str | None) -> None:
    """Say what happened to a run, on which rank and node, what was decided and why, and what to do next."""
    from slurmtrain.cli.explain_screen import Screen
    from slurmtrain.ops.explain import explain_run
    from slurmtrain.store.find import find_run

    if out is not None and not html:
        raise click.UsageError("--out says where --html writes its page; it does not go without --html")
    if html and (timeline or as_json):
        raise click.UsageError("--html writes a page; it does not go with --timeline or --json")
    found = explain_run(find_run(open_store(store), run), ask_slurm(), time.time())
    if html:
        print_text(_write_page(found, out, store))
        return
    if as_json:
        print_json(found.to_dict())
        return
    if found.slurm_error:
        say_note(f"{found.slurm_error}; shown is what the journal knows")
    screen = Screen(shutil.get_terminal_size((80, 40)).columns if sys.stdout.isatty() else 80)
    for line in screen.timeline(found) if timeline else screen.explanation(found):
        print_text(line)


def _write_page(found: Explanation, out: str | None, store: str | None) -> str:
    """Where the page was written."""
    from pathlib import Path

    from slurmtrain.cli.build import find_extensions
    from slurmtrain.cli.here import find_here
    from slurmtrain.errors import StoreError
    from slurmtrain.ops.page import write_page

    extensions, notes = find_extensions(load_here(store), find_here())
    for note in notes:
        say_note(note)
    target = find_here() / Path(out).expanduser() if out is not None else None
    try:
        return str(write_page(found, target, extensions.templates, time.time()))
    except StoreError as exc:
        raise StoreError(f"{exc}; --out FILE writes the page elsewhere") from exc
