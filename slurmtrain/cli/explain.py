"""``slurmtrain explain``: what happened to a run, where, what shows it, what was decided, what to do next."""

from __future__ import annotations

import shutil
import sys
import time

import click

from slurmtrain.cli.output import print_json, print_text, say_note
from slurmtrain.cli.runs import ask_slurm, json_option, open_store, run_argument, store_option

_EXAMPLES = """\b
Examples:
  slurmtrain explain RUN             one screen
  slurmtrain explain 4711            the run of job 4711
  slurmtrain explain RUN --timeline  every event, with who wrote it
  slurmtrain explain RUN --json | jq .diagnosis"""


@click.command("explain", epilog=_EXAMPLES)
@run_argument
@click.option("--timeline", is_flag=True, help="Every event of the run instead.")
@json_option("Print one JSON object.")
@store_option
def command(run: str, timeline: bool, as_json: bool, store: str | None) -> None:
    """Say what happened to a run, on which rank and node, what was decided and why, and what to do next."""
    from slurmtrain.cli.explain_screen import Screen
    from slurmtrain.ops.explain import explain_run
    from slurmtrain.store.find import find_run

    found = explain_run(find_run(open_store(store), run), ask_slurm(), time.time())
    if as_json:
        print_json(found.to_dict())
        return
    if found.slurm_error:
        say_note(f"{found.slurm_error}; shown is what the journal knows")
    screen = Screen(shutil.get_terminal_size((80, 40)).columns if sys.stdout.isatty() else 80)
    for line in screen.timeline(found) if timeline else screen.explanation(found):
        print_text(line)
