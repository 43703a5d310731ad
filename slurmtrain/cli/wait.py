"""``slurmtrain wait``: until runs have ended; the exit code tells how."""

from __future__ import annotations

import click

from slurmtrain.cli.output import clean, print_json, print_text, say_error, say_note
from slurmtrain.cli.runs import ask_slurm, find_named, json_option, open_store, runs_argument, store_option

_EXAMPLES = """\b
Examples:
  slurmtrain wait RUN && ./evaluate.sh
  slurmtrain wait RUN1 RUN2 --timeout 86400
  slurmtrain wait RUN --or-held || slurmtrain explain RUN

Exit codes: 0 all completed, 1 one failed, was stopped, terminated or is held, 4 Slurm did not answer for long,
124 the time-out came, 130 interrupted."""
EXIT_UNREACHABLE = 4
EXIT_TIMEOUT = 124  # as timeout(1)


@click.command("wait", epilog=_EXAMPLES)
@runs_argument(required=True)
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Give up after this long.")
@click.option("--or-held", is_flag=True, help="A run that is held for a person has ended, too.")
@click.option(
    "--interval",
    default=30.0,
    show_default=True,
    type=click.FloatRange(5, 3600),
    metavar="SECONDS",
    help="Between two questions to Slurm, one for all runs.",
)
@click.option(
    "--unreachable",
    default=900.0,
    show_default=True,
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Give up when Slurm has not answered for this long.",
)
@json_option("Print a list with one object for each run at the end, like status --json.")
@store_option
def command(
    runs: tuple[str, ...],
    timeout: float | None,
    or_held: bool,
    interval: float,
    unreachable: float,
    as_json: bool,
    store: str | None,
) -> int:
    """Wait for the end of runs. A run that is held for a person has not ended, unless --or-held says so."""
    from slurmtrain.ops.wait import Wait

    def tell(run_id: str, text: str) -> None:
        if as_json or not run_id:
            say_note(f"{run_id}: {text}" if run_id else text)
        else:
            print_text(clean(f"{run_id}: {text}"))

    waited = Wait(
        find_named(open_store(store), runs),
        ask_slurm(),
        timeout_s=timeout,
        or_held=or_held,
        slurm_s=interval,
        unreachable_s=unreachable,
        tell=tell,
    ).until_ended()
    if as_json:
        print_json([row.to_dict() for row in waited.rows])
    if waited.timed_out:
        say_error(f"{', '.join(waited.open_runs)} did not end within {timeout:g} s")
        return EXIT_TIMEOUT
    if waited.unreachable:
        say_error(f"gave up: {waited.unreachable}; not ended: {', '.join(waited.open_runs)}")
        return EXIT_UNREACHABLE
    return 0 if waited.all_completed else 1
