"""The command line: verbs, options, and the settings they ask for."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from minislurm import engine, faults, testrun
from minislurm.errors import MiniSlurmError
from minislurm.settings import DEFAULT_DIR, TIMERS, Settings

RELEASES = ("24.11", "26.05")
# Option -> smallest and largest value.
RANGES = {"nodes": (1, 50), "cpus": (1, 256), "gpus": (0, 16), "memory_mib": (500, 10**7), "port_base": (1024, 65000)}
CHOSEN = (*RANGES, "timers", "cgroup", "extra", "slurm", "lanes")


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
    fault = verbs.add_parser("fault", help="break something on purpose, for tests", parents=[common])
    fault.add_argument("action", choices=faults.ACTIONS)
    fault.add_argument("target", help="a node, or slurmctld, slurmdbd, mariadb, munged; nodes or all for heal")
    _add_test(verbs.add_parser("test", help="lint, unit, browser, packaging, live on native and docker clusters, demo"))
    return parser


def _add_test(test: argparse.ArgumentParser) -> None:
    for part in testrun.PARTS:
        test.add_argument(f"--{part}", action="store_true", help=f"only this part (and others named): {part}")
    test.add_argument("--slurm", choices=RELEASES, help="Slurm release of the containers")
    test.add_argument("pytest_args", nargs="*", metavar="-- PYTEST-ARG", help="for every pytest that runs")


def _up_options() -> Parser:
    options = Parser(add_help=False)
    where = options.add_mutually_exclusive_group()
    where.add_argument("--native", action="store_true", help="daemons on this machine (root)")
    where.add_argument("--docker", action="store_true", help="containers (default where an engine answers)")
    options.add_argument("--slurm", choices=RELEASES, help="Slurm release of the containers (24.11)")
    options.add_argument("--nodes", type=int, help="number of nodes (4)")
    options.add_argument("--cpus", type=int, help="imagined CPUs per node (8)")
    options.add_argument("--gpus", type=int, help="imagined GPUs per node (4)")
    options.add_argument("--memory-mib", type=int, help="imagined memory per node (8000)")
    options.add_argument("--timers", choices=sorted(TIMERS), help="quick, or Slurm's own defaults (quick)")
    options.add_argument("--no-accounting", action="store_true", help="no slurmdbd, no database")
    options.add_argument("--cgroup", choices=("auto", "v1", "v2", "none"), help="confine native steps (auto)")
    options.add_argument("--port-base", type=int, help="first TCP port (default: a free block from 26800)")
    options.add_argument("--set", dest="extra", action="append", metavar="KEY=VALUE", help="a line for slurm.conf")
    options.add_argument("--lanes", type=int, help="partitions for N tests side by side, each with its own nodes (1)")
    options.add_argument("--fresh", action="store_true", help="forget jobs, accounting and stores of earlier starts")
    options.add_argument("--extra", dest="extras", action="append", default=[], help="install slurmtrain[EXTRA]")
    options.add_argument("--no-venv", action="store_true", help="do not install slurmtrain")
    return options


def directory_of(args: argparse.Namespace) -> Path:
    """Where the cluster named on the command line lies."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,14}[a-z])?", args.name):
        rule = "1 to 16 lower-case letters, digits and dashes, beginning and ending with a letter"
        raise MiniSlurmError(f"cluster name {args.name!r}: expected {rule}.", code=2)
    if args.dir:
        return Path(args.dir).resolve()
    base = Path(os.environ.get("MINI_SLURM_DIR") or DEFAULT_DIR).resolve()
    return base if args.name == "default" else base.with_name(f"{base.name}-{args.name}")


def wanted_settings(args: argparse.Namespace, before: Settings | None) -> Settings:
    """Settings from the command line and the defaults; the kind of cluster stays what it was."""
    chosen = {key: getattr(args, key) for key in CHOSEN if getattr(args, key) is not None}
    for key, (low, high) in RANGES.items():
        if key in chosen and not low <= chosen[key] <= high:
            option = key.replace("_", "-")
            raise MiniSlurmError(f"--{option} {chosen[key]}: expected {low} to {high}.", code=2)
    for item in chosen.get("extra", []):
        if not re.fullmatch(r"[A-Za-z]\w*=[^\n]*", item):
            raise MiniSlurmError(f"--set {item!r}: expected KEY=VALUE, a line for slurm.conf.", code=2)
    backend = _backend(args, before)
    if before and backend == before.backend and before.slurm:
        chosen.setdefault("slurm", before.slurm)  # its database may not suit an older release
    settings = replace(
        Settings(),
        name=args.name,
        directory=str(directory_of(args)),
        backend=backend,
        accounting=not args.no_accounting,
        **chosen,
    )
    for extra in args.extras:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", extra):
            raise MiniSlurmError(
                f"--extra {extra!r}: expected the name of an extra of slurmtrain, such as demo.", code=2
            )
    if not 1 <= settings.lanes <= settings.nodes:
        raise MiniSlurmError(f"--lanes {settings.lanes}: expected 1 to {settings.nodes}, a node or more each.", code=2)
    if args.slurm and settings.backend == "native":
        raise MiniSlurmError("--slurm chooses the containers' Slurm; natively it is the one of this Debian.", code=2)
    return settings


def _backend(args: argparse.Namespace, before: Settings | None) -> str:
    if args.native or args.docker:
        return "docker" if args.docker else "native"
    if before:
        return before.backend
    return "docker" if args.slurm or engine.answers() else "native"


def changed(args: argparse.Namespace, before: Settings, wanted: Settings) -> str | None:
    """An option on the command line that the running cluster does not have, as `--option value`."""
    if (args.native or args.docker) and before.backend != wanted.backend:
        return f"--{before.backend}"
    for key in CHOSEN:
        if getattr(args, key) is not None and key != "cgroup" and getattr(before, key) != getattr(wanted, key):
            return f"--{ {'extra': 'set'}.get(key, key.replace('_', '-')) } {getattr(before, key)}"
    if args.no_accounting and before.accounting:
        return "accounting"
    return None
