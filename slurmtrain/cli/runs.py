"""What the commands about existing runs share: where the runs are, which are meant, and Slurm."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from slurmtrain.config.settings import Settings
    from slurmtrain.slurm.cli_client import CliSlurmClient
    from slurmtrain.store.rundir import RunDir

_F = TypeVar("_F", bound=Callable[..., Any])


def store_option(function: _F) -> _F:
    return click.option("--store", metavar="DIR", help="Where the runs are kept.")(function)


def json_option(text: str) -> Callable[[_F], _F]:
    return click.option("--json", "as_json", is_flag=True, help=text)


def dry_run_option(function: _F) -> _F:
    return click.option("--dry-run", is_flag=True, help="Say what would be done; do nothing.")(function)


def run_argument(function: _F) -> _F:
    """One run."""
    return click.argument("run", metavar="RUN")(function)


def runs_argument(*, required: bool) -> Callable[[_F], _F]:
    """Several runs."""
    return click.argument("runs", metavar="RUN..." if required else "[RUN]...", nargs=-1, required=required)


def load_here(store: str | None) -> Settings:
    """The settings that hold in the working directory."""
    from slurmtrain.cli.here import find_here
    from slurmtrain.config.settings import load_settings

    return load_settings(os.environ, find_here(), store=store)


def open_store(option: str | None) -> Path:
    """The store of the command line, the environment or the settings."""
    return load_here(option).store


def find_named(store: Path, names: Sequence[str]) -> list[RunDir]:
    """The runs that are meant by ids, beginnings of ids or job ids, each once; an array's name means all its runs.

    Raises ``NotFoundError``.
    """
    from slurmtrain.store.find import find_runs

    found = {run.path: run for name in names for run in find_runs(store, name)}
    return list(found.values())


def ask_slurm() -> CliSlurmClient:
    """Slurm's commands here."""
    from slurmtrain.hosts.local import LocalHost
    from slurmtrain.slurm.cli_client import CliSlurmClient

    return CliSlurmClient(LocalHost())


def note_space(store: Path, *, quota: bool = False) -> None:
    """Say so where the store is full or nearly so; ``quota``: ask for the user's quota, too, which may take seconds."""
    from slurmtrain.cli.output import say_note
    from slurmtrain.hosts.local import LocalHost
    from slurmtrain.ops.space import look_at_space, warn_of_space

    if warning := warn_of_space(store, look_at_space(store, LocalHost() if quota else None)):
        say_note(warning)


def person() -> str:
    """Who is asking, as ``user@host``."""
    from slurmtrain.ops.submitter import submitter

    facts = submitter()
    return f"{facts['user']}@{facts['host']}"
