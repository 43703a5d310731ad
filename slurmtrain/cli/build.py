"""From a request to a prepared run: what ``submit`` and ``render`` have in common."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from slurmtrain.cli.here import find_here
from slurmtrain.config.resolve import Request, resolve
from slurmtrain.config.settings import PROJECT_FILE, Settings, find_project, load_settings, user_config_dir
from slurmtrain.errors import UsageError
from slurmtrain.evidence.choose import choose_collectors
from slurmtrain.ops.array import PreparedArray, prepare_array
from slurmtrain.ops.prepare import Extensions, Prepared, build_run_id, prepare
from slurmtrain.plugins.manager import load_plugins
from slurmtrain.plugins.search import PROJECT_FOLDER, find_folders, find_places


def build_run(
    request: Request, store: str | None, folders: Sequence[Path], run_dir: Path | None = None
) -> Prepared | PreparedArray:
    """Resolve, render and check; nothing is written. ``run_dir`` replaces the one in the store."""
    environ, cwd = os.environ, find_here()
    settings = load_settings(environ, cwd, store=store)
    resolved = resolve(request, settings, environ, cwd)
    extensions, notes = find_extensions(settings, cwd, folders)
    now = datetime.now().astimezone()
    prepared: Prepared | PreparedArray
    if resolved.spec.array is None:
        target = run_dir or settings.store / "runs" / build_run_id(resolved.spec.name, now)
        prepared = prepare(resolved, target, now, extensions, settings.agent_python)
    elif run_dir is None:
        prepared = prepare_array(resolved, settings.store, now, extensions, settings.agent_python)
    else:
        raise UsageError("an array is several runs, each with a directory of its own: write one of them without array")
    return dataclasses.replace(prepared, notes=(*notes, *prepared.notes))


def find_extensions(settings: Settings, cwd: Path, folders: Sequence[Path] = ()) -> tuple[Extensions, list[str]]:
    """Templates, rules, formats and collectors of the whole search order, and notes on what could not be used."""
    trusted, project = settings.trusted(), find_project(cwd)
    places = find_places(os.environ, given=folders, project=project, user=user_config_dir(os.environ))
    plugins = load_plugins(places, trusted)
    templates = [*find_folders(places, "templates", trusted), *plugins.folders("template")]
    rules = [*find_folders(places, "rules", trusted), *plugins.folders("rule")]
    chosen = choose_collectors(places, trusted)
    formats = find_folders(places, "formats", trusted)
    notes = [*plugins.notes, *chosen.notes]
    if project is None and (cwd / PROJECT_FOLDER).is_dir():
        unused = f"{cwd / PROJECT_FOLDER} has no {PROJECT_FILE} beside it, so it is not used"
        notes.append(f"{unused}: make one, an empty file will do")
    return Extensions(templates, rules, formats, chosen.collectors), notes


def find_commands() -> dict[str, click.Command]:
    """Commands that plugins add."""
    cwd = find_here()
    settings = load_settings(os.environ, cwd)
    places = find_places(os.environ, project=find_project(cwd), user=user_config_dir(os.environ))
    found = load_plugins(places, settings.trusted()).commands()
    return {name: command for name, command in found.items() if isinstance(command, click.Command)}
