"""Verbs and options of mini-slurm."""

from __future__ import annotations

import argparse
import fcntl
import os
import pwd
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from minislurm import commands, describe, faults, native, procs, testrun, users, venv
from minislurm.errors import MiniSlurmError
from minislurm.say import say
from minislurm.settings import DEFAULT_DIR, REPO, TIMERS, Settings, load_settings

RELEASES = ("24.11", "26.05")
LOCK = Path("/run/lock/mini-slurm.lock")


class Parser(argparse.ArgumentParser):
    """argparse with one sentence for a mistake."""

    def error(self, message: str) -> NoReturn:
        raise MiniSlurmError(f"{message}; see `mini-slurm --help`.", code=2)


def build_parser() -> Parser:
    parser = Parser(prog="mini-slurm", description="A small but real Slurm cluster for tests and demos.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    common = Parser(add_help=False)
    common.add_argument("--name", default="default", help="which cluster; several can run side by side")
    common.add_argument("--dir", help="its directory (default: $MINI_SLURM_DIR or /opt/mini-slurm[-NAME])")
    up_options = _up_options()
    for verb, text in (("up", "start the cluster"), ("demo", "start the cluster if needed and show slurmtrain on it")):
        verbs.add_parser(verb, help=text, parents=[common, up_options])
    stop = verbs.add_parser("down", help="stop everything that up started", parents=[common])
    stop.add_argument("--purge", action="store_true", help="remove the cluster's directory too")
    verbs.add_parser("status", help="what runs and what Slurm says; exit status 0 if all is well", parents=[common])
    verbs.add_parser("env", help='print exports for eval "$(mini-slurm env)"', parents=[common])
    verbs.add_parser("logs", help="print where the logs are and their last lines", parents=[common])
    shell = verbs.add_parser("shell", help="a shell, or a command after --, as the researcher", parents=[common])
    shell.add_argument("command", nargs="*", metavar="-- COMMAND")
    test = verbs.add_parser("test", help="all tests: lint, unit, packaging, live on native and docker clusters, demo")
    for part in testrun.PARTS:
        test.add_argument(f"--{part}", action="store_true", help=f"only this part (and others named): {part}")
    test.add_argument("--slurm", choices=RELEASES, help="Slurm release of the containers")
    test.add_argument("pytest_args", nargs="*", metavar="-- PYTEST-ARG", help="for every pytest that runs")
    fault = verbs.add_parser("fault", help="break something on purpose, for tests", parents=[common])
    fault.add_argument("action", choices=faults.ACTIONS)
    fault.add_argument("target", help="a node, or slurmctld, slurmdbd, mariadb, munged")
    return parser


def _up_options() -> Parser:
    options = Parser(add_help=False)
    where = options.add_mutually_exclusive_group()
    where.add_argument("--native", action="store_true", help="daemons on this machine (root)")
    where.add_argument("--docker", action="store_true", help="containers")
    options.add_argument("--slurm", choices=RELEASES, help="Slurm release of the containers")
    options.add_argument("--nodes", type=int, help="number of nodes (4)")
    options.add_argument("--cpus", type=int, help="imagined CPUs per node (8)")
    options.add_argument("--gpus", type=int, help="imagined GPUs per node (4)")
    options.add_argument("--memory-mib", type=int, help="imagined memory per node (8000)")
    options.add_argument("--timers", choices=sorted(TIMERS), help="quick, or Slurm's own defaults (quick)")
    options.add_argument("--no-accounting", action="store_true", help="no slurmdbd, no database")
    options.add_argument("--cgroup", choices=("auto", "v1", "v2", "none"), help="confine steps with cgroups (auto)")
    options.add_argument("--port-base", type=int, help="first TCP port (default: a free block from 26800)")
    options.add_argument("--set", dest="extra", action="append", metavar="KEY=VALUE", help="a line for slurm.conf")
    options.add_argument("--lanes", type=int, help="partitions for N tests side by side, each with its own nodes (1)")
    options.add_argument("--fresh", action="store_true", help="forget jobs, accounting and stores of earlier starts")
    options.add_argument("--no-venv", action="store_true", help="do not install slurmtrain")
    return options


def directory_of(args: argparse.Namespace) -> Path:
    """Where the cluster named on the command line lies."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,14}[a-z])?", args.name):
        raise MiniSlurmError(
            f"cluster name {args.name!r}: 1 to 16 lower-case letters, digits and dashes, no digit or dash at its end.",
            code=2,
        )
    if args.dir:
        return Path(args.dir).resolve()
    base = Path(os.environ.get("MINI_SLURM_DIR") or DEFAULT_DIR).resolve()
    return base if args.name == "default" else base.with_name(f"{base.name}-{args.name}")


def wanted_settings(args: argparse.Namespace) -> Settings:
    """Settings from the command line, on top of nothing but the defaults."""
    given = {
        key: getattr(args, key)
        for key in ("nodes", "cpus", "gpus", "timers", "cgroup", "port_base", "extra", "slurm", "lanes")
    }
    given["memory_mib"] = args.memory_mib
    chosen = {key: value for key, value in given.items() if value is not None}
    settings = replace(Settings(), name=args.name, directory=str(directory_of(args)), **chosen)
    for key, low, high in (
        ("nodes", 1, 50),
        ("cpus", 1, 256),
        ("gpus", 0, 16),
        ("memory_mib", 500, 10**7),
        ("lanes", 1, settings.nodes),
    ):
        if not low <= getattr(settings, key) <= high:
            option = key.replace("_", "-")
            raise MiniSlurmError(f"--{option} {getattr(settings, key)}: expected {low} to {high}.", code=2)
    if args.port_base is not None and not 1024 <= args.port_base <= 65000:
        raise MiniSlurmError(f"--port-base {args.port_base}: expected 1024 to 65000.", code=2)
    for item in settings.extra:
        if not re.fullmatch(r"[A-Za-z]\w*=[^\n]*", item):
            raise MiniSlurmError(f"--set {item!r}: expected KEY=VALUE, a line for slurm.conf.", code=2)
    return replace(settings, accounting=not args.no_accounting)


def existing(args: argparse.Namespace) -> Settings:
    """The settings of the cluster that a verb is about."""
    directory = directory_of(args)
    settings = load_settings(directory)
    if settings is None:
        raise MiniSlurmError(f"there is no cluster in {directory}; start one with `mini-slurm up`.", code=3)
    return settings


def need_root(what: str) -> None:
    if os.geteuid() != 0:
        raise MiniSlurmError(f"{what} needs root; run it with sudo.")


@contextmanager
def locked() -> Iterator[None]:
    """One `up` or `down` at a time on this machine: they choose ports and install packages."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another mini-slurm to finish ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def up(args: argparse.Namespace, extras: tuple[str, ...] = ()) -> Settings:
    need_root("the native cluster")
    wanted = wanted_settings(args)
    with locked():
        before = load_settings(Path(wanted.directory))
        if before and set(native.running(before)) == set(native.daemons(before)):
            return _already_running(args, before, wanted, extras)
        if before:
            native.clean_up(before)  # what a crash left, with the node names of that time
        if args.fresh:
            _forget(before or wanted)
        settings = native.up(wanted)
    native.report_up(settings)
    _finish(args, settings, extras)
    return settings


def _finish(args: argparse.Namespace, settings: Settings, extras: tuple[str, ...]) -> None:
    """cluster.json first: the cluster is usable even if slurmtrain cannot be installed yet."""
    describe.write_cluster_json(settings, describe.native_facts(settings))
    if not args.no_venv and venv.ensure(settings.layout.venv, extras):
        describe.write_cluster_json(settings, describe.native_facts(settings))


def _already_running(args: argparse.Namespace, before: Settings, wanted: Settings, extras: tuple[str, ...]) -> Settings:
    for key in ("nodes", "cpus", "gpus", "timers", "memory_mib", "port_base", "lanes", "extra"):
        if getattr(args, key) is not None and getattr(before, key) != getattr(wanted, key):
            option = {"extra": "set"}.get(key, key.replace("_", "-"))
            raise MiniSlurmError(
                f"already running in {before.directory} with --{option} {getattr(before, key)}; change it after `down`."
            )
    say(f"already running in {before.directory}")
    _finish(args, before, extras)
    return before


def _forget(settings: Settings) -> None:
    """Remove what earlier starts left, but neither the virtual environment nor keys."""
    native.clean_up(settings)
    layout = settings.layout
    for path in (layout.state, layout.spool, layout.database, layout.log, layout.shared, layout.root / "home"):
        shutil.rmtree(path, ignore_errors=True)


def down(args: argparse.Namespace) -> int:
    directory = directory_of(args)
    settings = load_settings(directory)
    if settings is None:
        say(f"nothing to stop: there is no cluster in {directory}")
        return 0
    need_root("stopping the cluster")
    with locked():
        was_running = native.running(settings)
        native.down(settings)
        if args.purge:
            shutil.rmtree(directory)
    say(f"stopped {directory}" if was_running else f"nothing was running in {directory}")
    return 0


def status(args: argparse.Namespace) -> int:
    settings = existing(args)
    alive = native.running(settings)
    missing = [name for name in native.daemons(settings) if name not in alive]
    states = commands.node_states(settings) if "slurmctld" in alive else {}
    print(f"cluster {settings.cluster_name} in {settings.directory}: {'not wholly ' if missing else ''}running")
    print(f"  timers {settings.timers}, cgroup {settings.cgroup}, accounting {'on' if settings.accounting else 'off'}")
    for name in native.daemons(settings):
        record = procs.load_record(settings.layout.run, name)
        node = name.removeprefix("slurmd-") if name.startswith("slurmd-") else ""
        state = f"  {states.get(node, 'unknown')}" if node else ""
        print(f"  {name:<12} {'pid ' + str(record.pid) if record and name in alive else 'not running':<14}{state}")
    return 0 if not missing and commands.nodes_ready(settings) else 1


def shell(args: argparse.Namespace, settings: Settings) -> int:
    need_root("a shell as the researcher")
    user = pwd.getpwnam(settings.user)
    argv = args.command or ["bash", "-i"]
    users.become(user, users.login_env(settings, user), settings.layout.store(settings.user), argv)
    return 127


def logs(settings: Settings) -> int:
    for path in sorted([*settings.layout.log.glob("*.log"), *settings.layout.log.glob("*.out")]):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        print(f"==> {path} <==")
        print("\n".join(lines[-15:]))
    return 0


def demo(args: argparse.Namespace) -> int:
    script = REPO / "docker" / "demo" / "run"
    if not script.exists():
        raise MiniSlurmError(f"{script} is missing; this checkout has no demo.")
    settings = up(args, ("demo",))
    folder = settings.layout.root / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(script.parent, folder)  # the researcher may not be able to read the checkout
    args.command = [str(folder / "run")]
    return shell(args, settings)


def dispatch(args: argparse.Namespace) -> int:
    if args.verb == "up":
        up(args)
        return 0
    if args.verb == "demo":
        return demo(args)
    if args.verb == "down":
        return down(args)
    if args.verb == "status":
        return status(args)
    if args.verb == "test":
        return testrun.run(args)
    settings = existing(args)
    if args.verb == "env":
        describe.write_cluster_json(settings, describe.native_facts(settings))
        print(describe.shell_exports(settings))
        return 0
    if args.verb == "logs":
        return logs(settings)
    if args.verb == "fault":
        faults.inject(settings, args.action, args.target)
        return 0
    return shell(args, settings)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    """Unwind as Ctrl-C does, so that a cluster which is just starting is stopped again."""
    raise KeyboardInterrupt


def main(argv: list[str]) -> int:
    """Run one verb; a known problem is one sentence on standard error."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        return dispatch(build_parser().parse_args(argv))
    except MiniSlurmError as exc:
        print(f"mini-slurm: {exc}", file=sys.stderr)
        return exc.code
    except KeyboardInterrupt:
        return 130
