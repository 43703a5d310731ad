"""The verbs of mini-slurm."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from minislurm import backends, describe, options, testrun
from minislurm.errors import MiniSlurmError
from minislurm.say import say
from minislurm.settings import REPO, Settings, load_settings


def existing(args: argparse.Namespace) -> Settings:
    """The settings of the cluster that a verb is about."""
    directory = options.directory_of(args)
    settings = load_settings(directory)
    if settings is None:
        raise MiniSlurmError(f"there is no cluster in {directory}; start one with `mini-slurm up`.", code=3)
    return settings


@contextmanager
def locked() -> Iterator[None]:
    """One `up` or `down` at a time on this machine: they choose ports and install packages."""
    with Path(f"/run/lock/mini-slurm-{os.geteuid()}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another mini-slurm to finish ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def up(args: argparse.Namespace) -> Settings:
    """Start the cluster unless it runs; then slurmtrain and cluster.json."""
    before = load_settings(options.directory_of(args))
    wanted = options.wanted_settings(args, before)
    backends.of(wanted).check_may("starting a cluster")
    with locked():
        before = load_settings(Path(wanted.directory))
        if before and set(backends.of(before).running(before)) == set(backends.of(before).services(before)):
            if different := options.changed(args, before, wanted):
                raise MiniSlurmError(f"already running in {before.directory} with {different}; change it after `down`.")
            say(f"already running in {before.directory}")
            settings = before
        else:
            settings = _start(args, before, wanted)
    _finish(args, settings)
    return settings


def _start(args: argparse.Namespace, before: Settings | None, wanted: Settings) -> Settings:
    check_directory(Path(wanted.directory), before)
    if before:
        backends.of(before).clean_up(before)  # what a crash left, with the node names of that time
    if args.fresh:
        _forget(before or wanted)
    settings = backends.of(wanted).up(wanted)
    backends.of(settings).report_up(settings)
    return settings


def check_directory(path: Path, before: Settings | None) -> None:
    """A cluster's directory is its own (`down --purge` removes it) and everybody can get there."""
    if before is None and path.is_dir() and any(path.iterdir()):
        raise MiniSlurmError(f"{path} is not empty and holds no cluster; choose another directory with --dir.")
    for parent in path.parents:
        if parent.exists() and not parent.stat().st_mode & 0o001:
            raise MiniSlurmError(f"{parent} cannot be entered by other users; choose another directory with --dir.")


def _finish(args: argparse.Namespace, settings: Settings) -> None:
    """cluster.json first: the cluster is usable even if slurmtrain cannot be installed yet."""
    backend = backends.of(settings)
    describe.write_cluster_json(settings, backend.facts(settings))
    if not args.no_venv and backend.install(settings, args.extras):
        describe.write_cluster_json(settings, backend.facts(settings))


def _forget(settings: Settings) -> None:
    """Remove what earlier starts left, but neither the virtual environment nor keys."""
    layout = settings.layout
    for path in (layout.state, layout.spool, layout.database, layout.log, layout.shared, layout.root / "home"):
        shutil.rmtree(path, ignore_errors=True)


def down(args: argparse.Namespace) -> int:
    """Stop the cluster; nothing to stop is fine."""
    directory = options.directory_of(args)
    settings = load_settings(directory)
    if settings is None:
        say(f"nothing to stop: there is no cluster in {directory}")
        return 0
    backend = backends.of(settings)
    backend.check_may("stopping the cluster")
    with locked():
        was_running = backend.running(settings)
        backend.down(settings)
        if args.purge:
            shutil.rmtree(directory)
    say(f"stopped {directory}" if was_running else f"nothing was running in {directory}")
    return 0


def status(settings: Settings) -> int:
    """Print what runs; 0 if everything does and every node answers."""
    backend = backends.of(settings)
    missing = set(backend.services(settings)) - set(backend.running(settings))
    print(
        f"cluster {settings.cluster_name} in {settings.directory}: {'not wholly ' if missing else ''}running\n"
        f"  {settings.backend}, timers {settings.timers}, cgroup {settings.cgroup}, "
        f"accounting {'on' if settings.accounting else 'off'}"
    )
    rows = backend.status_rows(settings)
    width = max(len(text) for _, text, _ in rows)
    for name, text, state in rows:
        print(f"  {name:<16} {text:<{width}}  {state}".rstrip())
    return 0 if not missing and backend.ready(settings) else 1


def logs(settings: Settings) -> int:
    """Print the last lines of every log."""
    for path in sorted([*settings.layout.log.glob("*.log"), *settings.layout.log.glob("*.out")]):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        print(f"==> {path} <==")
        print("\n".join(lines[-15:]))
    return 0


def demo(args: argparse.Namespace) -> int:
    """The walk-through, run by the researcher on the cluster."""
    source = REPO / "docker" / "demo"
    if not (source / "run").exists():
        raise MiniSlurmError(f"{source / 'run'} is missing; this checkout has no demo.")
    args.extras.append("demo")
    settings = up(args)
    folder = settings.layout.root / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)  # the researcher may not be able to read the checkout
    return backends.of(settings).shell(settings, [str(folder / "run")])


def on_existing(args: argparse.Namespace) -> int:
    """The verbs that need a cluster."""
    settings = existing(args)
    backend = backends.of(settings)
    if args.verb == "status":
        return status(settings)
    if args.verb == "logs":
        return logs(settings)
    if args.verb == "env":
        if os.access(settings.directory, os.W_OK):
            describe.write_cluster_json(settings, backend.facts(settings))
        print(describe.shell_exports(settings))
        return 0
    if args.verb == "fault":
        backend.fault(settings, args.action, args.target)
        return 0
    backend.check_may("a shell as the researcher")
    return backend.shell(settings, args.command)


def dispatch(args: argparse.Namespace) -> int:
    if args.verb == "up":
        up(args)
        return 0
    if args.verb == "demo":
        return demo(args)
    if args.verb == "down":
        return down(args)
    if args.verb == "test":
        return testrun.run(args)
    return on_existing(args)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    """Unwind as Ctrl-C does, so that a cluster which is just starting is stopped again."""
    raise KeyboardInterrupt


def main(argv: list[str]) -> int:
    """Run one verb; a known problem is one sentence on standard error."""
    os.umask(0o022)  # other users read the configuration and run what is installed
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        return dispatch(options.build_parser().parse_args(argv))
    except MiniSlurmError as exc:
        print(f"mini-slurm: {exc}", file=sys.stderr)
        return exc.code
    except PermissionError as exc:
        print(f"mini-slurm: {exc.filename}: {exc.strerror}; this needs root.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
