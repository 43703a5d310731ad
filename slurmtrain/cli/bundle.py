"""``slurmtrain bundle``: one archive of a run to attach to a ticket, secrets masked."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmtrain.cli.output import print_json, print_text, say_note
from slurmtrain.cli.runs import ask_slurm, json_option, load_here, open_store, run_argument, store_option

if TYPE_CHECKING:
    from slurmtrain.ops.bundle import Bundle
    from slurmtrain.ops.explain import Explanation

_EXAMPLES = """\b
Examples:
  slurmtrain bundle RUN                    RUN.tar.gz in the working directory
  slurmtrain bundle RUN --out ~/ticket.tar.gz
  slurmtrain bundle RUN --since-attempt 3  only what belongs to attempt 3 and later ones
  slurmtrain bundle RUN --max-size 5M"""
_SMALLEST = 64 << 10


@click.command("bundle", epilog=_EXAMPLES)
@run_argument
@click.option("-o", "--out", metavar="FILE", help="Where to write it; default: RUN.tar.gz in the working directory.")
@click.option("--since-attempt", type=click.IntRange(0), default=0, metavar="N", help="Leave earlier attempts out.")
@click.option("--max-size", default="25M", show_default=True, metavar="SIZE", help="Of all files together, unpacked.")
@json_option("Print its manifest as one JSON object.")
@store_option
def command(run: str, out: str | None, since_attempt: int, max_size: str, as_json: bool, store: str | None) -> None:
    """Make one archive of a run to attach to a ticket.

    It holds spec, scripts, journal, decisions, scenes, parts of the logs and the answer of explain as text, page and
    JSON. Secrets that are recognised are masked; core dumps, checkpoints and other binary files are never taken.
    """
    from slurmtrain.cli.here import find_here
    from slurmtrain.ops.bundle import write_bundle
    from slurmtrain.ops.explain import explain_run
    from slurmtrain.store.find import find_run

    limit = _read_size(max_size)
    now = time.time()
    found = explain_run(find_run(open_store(store), run), ask_slurm(), now)
    if found.slurm_error:
        say_note(f"{found.slurm_error}; the bundle holds what the journal knows")
    target = find_here() / (Path(out).expanduser() if out else Path(f"{found.status.run_id}.tar.gz"))
    made = write_bundle(found, target, _texts(found, store, now), now, since_attempt=since_attempt, max_size=limit)
    if as_json:
        print_json({"path": str(made.path), "size": made.size, **_rows(made)})
    else:
        _print(made)


def _read_size(text: str) -> int:
    from slurmtrain.config.limits import parse_size

    try:
        size = parse_size(text)
    except ValueError as exc:
        raise click.UsageError(f"--max-size: {exc}") from None
    if size < _SMALLEST:
        raise click.UsageError(f"--max-size {text}: a bundle needs at least 64K")
    return size


def _texts(found: Explanation, store: str | None, now: float) -> dict[str, str]:
    """The answer in three forms."""
    from slurmtrain.cli.build import find_extensions
    from slurmtrain.cli.explain_screen import Screen
    from slurmtrain.cli.here import find_here
    from slurmtrain.ops.page import make_page

    extensions, notes = find_extensions(load_here(store), find_here())
    for note in notes:
        say_note(note)
    screen = Screen(100)
    lines = [click.unstyle(line) for line in (*screen.explanation(found), "", *screen.timeline(found))]
    return {
        "explain.txt": "\n".join(lines) + "\n",
        "explain.html": make_page(found, extensions.templates, now),
        "explain.json": json.dumps(found.to_dict(), indent=1) + "\n",
    }


def _rows(made: Bundle) -> dict[str, object]:
    left_out = [{"name": item.name, "why": item.why} for item in made.left_out]
    return {"files": made.members, "left_out": left_out}


def _print(made: Bundle) -> None:
    masked = sum(bool(row["secrets_masked"]) for row in made.members)
    print_text(str(made.path))
    say_note(
        f"{len(made.members)} files, {made.size / 2**20:.1f} MiB unpacked, secrets masked in {masked}, "
        f"{len(made.left_out)} left out: MANIFEST.json in it says which and why. Look at it before you send it on: "
        "only secrets that look like some are recognised"
    )
