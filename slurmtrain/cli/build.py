"""From a request to a prepared run: what ``submit`` and ``render`` have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from slurmtrain.config.environment import submission_environment
from slurmtrain.config.resolve import Request, resolve
from slurmtrain.config.settings import find_project, load_settings, user_config_dir
from slurmtrain.errors import NotFoundError
from slurmtrain.hosts.local import LocalHost
from slurmtrain.ops.prepare import Extensions, Prepared, build_run_id, prepare
from slurmtrain.plugins.search import find_folders, find_places
from slurmtrain.slurm.cli_client import CliSlurmClient


def build_run(request: Request, store: str | None, folders: Sequence[Path], run_dir: Path | None = None) -> Prepared:
    """Resolve, render and check; nothing is written. ``run_dir`` replaces the one in the store."""
    environ, cwd = os.environ, _here()
    settings = load_settings(environ, cwd, store=store)
    resolved = resolve(request, settings, environ, cwd)
    trusted = [folder for file in settings.files for folder in file.trust]
    places = find_places(environ, given=folders, project=find_project(cwd), user=user_config_dir(environ))
    extensions = Extensions(find_folders(places, "templates", trusted), find_folders(places, "rules", trusted))
    now = datetime.now().astimezone()
    target = run_dir or settings.store / "runs" / build_run_id(resolved.spec.name, now)
    return prepare(resolved, target, now, extensions, settings.agent_python)


def open_slurm() -> CliSlurmClient:
    """Slurm's commands here, in an environment that a job may inherit."""
    return CliSlurmClient(LocalHost(), environ=submission_environment(os.environ))


def _here() -> Path:
    """The working directory as the person sees it: ``$PWD`` keeps links that name a mount."""
    try:
        real = Path.cwd()
    except FileNotFoundError:
        raise NotFoundError("the working directory does not exist any more; change to another one") from None
    seen = os.environ.get("PWD", "")
    try:
        return Path(seen) if seen.startswith("/") and Path(seen).samefile(real) else real
    except OSError:
        return real
