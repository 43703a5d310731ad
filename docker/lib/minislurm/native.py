"""The native cluster: real daemons of Debian's packages on this machine, below one directory."""

from __future__ import annotations

import pwd
import secrets
import shutil
import subprocess
from dataclasses import replace

from minislurm import cgroups, commands, members, packages, ports, procs, tree
from minislurm.errors import MiniSlurmError
from minislurm.say import elapsed, say, warn
from minislurm.settings import Settings, save_settings


class CgroupError(Exception):
    """slurmd or a first step failed with the chosen cgroup mode."""


def daemons(settings: Settings) -> list[str]:
    """Names of the daemons in the order they start."""
    database = ["mariadb", "slurmdbd"] if settings.accounting else []
    return ["munged", *database, "slurmctld", *(f"slurmd-{node}" for node in settings.node_names)]


def running(settings: Settings) -> list[str]:
    """Names of the daemons that are alive."""
    return [name for name in daemons(settings) if procs.is_running(settings.layout.run, name)]


def up(settings: Settings) -> Settings:
    """Start everything; returns the settings with ports and cgroup mode filled in."""
    programs = dict(packages.SLURM_PROGRAMS)
    if settings.accounting:
        programs |= packages.ACCOUNTING_PROGRAMS
    packages.ensure(programs)
    clean_up(settings)
    base = ports.choose_base(settings.port_base, 4 + settings.nodes, ports.bases_of_others(settings))
    mode = cgroups.detect() if settings.cgroup == "auto" else settings.cgroup
    if mode == "v2":
        cgroups.prepare_v2()
    started = replace(settings, port_base=base, cgroup=mode)
    try:
        _start_or_stop(started)
    except CgroupError as exc:
        if settings.cgroup != "auto" or mode == "none":
            raise MiniSlurmError(f"slurmd did not start with cgroup mode {mode}: {exc}") from exc
        warn(f"cgroups ({mode}) do not work here ({exc}); going on without them.")
        started = replace(started, cgroup="none")
        _start_or_stop(started)
    if started.cgroup == "none":
        warn("no usable cgroups: proctrack/linuxproc, so signals reach grandchildren and memory limits kill nothing.")
    return started


def _start_or_stop(settings: Settings) -> None:
    """All of the cluster or nothing of it, also when interrupted."""
    try:
        _start(settings)
    except BaseException:
        clean_up(settings)
        raise


def _start(settings: Settings) -> None:
    settings.layout.root.mkdir(parents=True, exist_ok=True)
    save_settings(settings)  # first: it marks the directory as ours
    user = tree.make_tree(settings)
    tree.write_config(settings)
    _start_munged(settings)
    if settings.accounting:
        _start_database(settings)
    _start_slurmctld(settings)
    for node in settings.node_names:
        start_node(settings, node)
    _wait_for_nodes(settings)
    if settings.accounting:
        _register_user(settings, user)
    if settings.cgroup != "none":
        _try_step(settings)


def start_daemon(settings: Settings, name: str) -> None:
    """Start one daemon by its name (as in `daemons`), without waiting for it."""
    layout = settings.layout
    argv, user = _command(settings, name)
    procs.start_daemon(
        layout.run, name, argv, env=commands.slurm_env(settings), log=layout.log / f"{name}.out", user=user
    )


def _command(settings: Settings, name: str) -> tuple[list[str], str | None]:
    """Argument list and account of a daemon in the foreground."""
    layout = settings.layout
    if name == "munged":
        folder = layout.munge_socket.parent
        argv = [
            "munged",
            "--foreground",
            "--force",
            f"--socket={layout.munge_socket}",
            f"--key-file={folder}/munge.key",
        ]
        argv += [
            f"--log-file={folder}/munged.log",
            f"--pid-file={folder}/munged.pid",
            f"--seed-file={folder}/munged.seed",
        ]
        return [_path(argv[0]), *argv[1:], "--num-threads=4"], "munge"
    if name == "mariadb":
        return [_path("mariadbd"), f"--defaults-file={layout.etc}/mariadb.cnf"], "mysql"
    if name == "slurmdbd":
        return [_path("slurmdbd"), "-D"], None
    if name == "slurmctld":
        return [_path("slurmctld"), "-D", "-i", "-f", str(layout.slurm_conf)], None
    return [_path("slurmd"), "-D", "-N", name.removeprefix("slurmd-"), "-f", str(layout.slurm_conf)], None


def _path(name: str) -> str:
    found = packages.program(name)
    if found is None:
        raise MiniSlurmError(f"the program {name} is missing; run `up` as root to install its package.")
    return found


def _start_munged(settings: Settings) -> None:
    layout = settings.layout
    key = layout.munge_socket.parent / "munge.key"
    if not key.exists():
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        shutil.chown(key, "munge", "munge")
    start_daemon(settings, "munged")
    argv = [_path("munge"), "-n", "-S", str(layout.munge_socket)]
    _wait_for(settings, "munged", lambda: subprocess.run(argv, capture_output=True, timeout=10).returncode == 0, 10)


def _start_database(settings: Settings) -> None:
    layout = settings.layout
    if not (layout.database / "mysql").is_dir():
        argv = [
            _path("mariadb-install-db"),
            f"--defaults-file={layout.etc}/mariadb.cnf",
            f"--datadir={layout.database}",
        ]
        argv += ["--user=mysql", "--force", "--skip-test-db", "--auth-root-authentication-method=socket"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise MiniSlurmError(f"mariadb-install-db failed: {(done.stderr or done.stdout).strip()[-300:]}")
    start_daemon(settings, "mariadb")
    _wait_for(settings, "mariadb", lambda: not ports.is_free(settings.ports["mariadb"]), 60)
    start_daemon(settings, "slurmdbd")
    _wait_for(settings, "slurmdbd", lambda: not ports.is_free(settings.ports["slurmdbd"]), 60)


def _start_slurmctld(settings: Settings) -> None:
    start_daemon(settings, "slurmctld")
    _wait_for(
        settings, "slurmctld", lambda: "UP" in commands.slurm(settings, "scontrol", "ping", timeout_s=5).stdout, 60
    )


def start_node(settings: Settings, node: str) -> None:
    """Start a node's slurmd, without waiting for it."""
    start_daemon(settings, f"slurmd-{node}")


def _wait_for(settings: Settings, name: str, ready: object, timeout_s: float) -> None:
    """Wait for a daemon to answer; one that died or never answers ends `up` with its last words."""
    assert callable(ready)
    run_dir = settings.layout.run
    procs.wait_until(lambda: bool(ready()) or not procs.is_running(run_dir, name), timeout_s, 0.05)
    if not procs.is_running(run_dir, name) or not ready():
        raise MiniSlurmError(f"{name} did not start: {last_words(settings, name)}")


def last_words(settings: Settings, name: str) -> str:
    """The last line a daemon wrote that says error or fatal, else its last line, and where to read on."""
    lines = log_lines(settings, name)
    bad = [line for line in lines if "fatal" in line] or [line for line in lines if "rror" in line] or lines
    return f"{bad[-1][:300] if bad else 'it wrote nothing'} (logs in {settings.layout.log})"


def log_lines(settings: Settings, name: str) -> list[str]:
    """The last lines of a daemon's output and log, empty ones left out."""
    lines: list[str] = []
    for path in (settings.layout.log / f"{name}.out", settings.layout.log / f"{name}.log"):
        if path.exists():
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()[-200:]
    return [line.strip() for line in lines if line.strip()]


def _wait_for_nodes(settings: Settings) -> None:
    names = [f"slurmd-{node}" for node in settings.node_names]
    run_dir = settings.layout.run

    def dead() -> list[str]:
        return [name for name in names if not procs.is_running(run_dir, name)]

    procs.wait_until(lambda: bool(dead()) or commands.nodes_ready(settings), 30, 0.1)
    if gone := dead():
        words = last_words(settings, gone[0])
        # slurmd's last words name no cause; if cgroups were it, an earlier line says so.
        if settings.cgroup != "none" and any(
            "cgroup" in line and "rror" in line for line in log_lines(settings, gone[0])
        ):
            raise CgroupError(words)
        raise MiniSlurmError(f"{gone[0]} did not start: {words}")
    if not commands.nodes_ready(settings):
        raise MiniSlurmError(
            f"nodes not idle within 30 s: {commands.node_states(settings)} (logs in {settings.layout.log})"
        )


def _try_step(settings: Settings) -> None:
    """One step on the first node, to see that slurmstepd gets along with the cgroups."""
    commands.slurm(settings, "scancel", "-u", "root", "-n", "mini-slurm-probe")  # of an `up` that was killed
    argv = ["srun", "-Q", "-J", "mini-slurm-probe", "-w", settings.node_names[0], "-p", "urgent", "-n1", "--mem=50"]
    argv += ["--immediate=10", "true"]
    done = commands.slurm(settings, *argv, timeout_s=20)
    if done.returncode != 0 and commands.node_states(settings).get(settings.node_names[0]) in (
        "idle",
        "drained",
        "draining",
    ):
        raise CgroupError(f"a first step failed: {done.stderr.strip()[-200:]}")


def _register_user(settings: Settings, user: pwd.struct_passwd) -> None:
    """An account and the researcher in the accounting database, once."""
    marker = settings.layout.state / ".registered"
    if marker.exists():
        return
    procs.wait_until(
        lambda: bool(commands.slurm(settings, "sacctmgr", "-nP", "show", "cluster").stdout.strip()), 15, 0.2
    )
    for argv in (("account", "lab", "Description=lab"), ("user", user.pw_name, "Account=lab")):
        commands.slurm(settings, "sacctmgr", "-i", "add", *argv)
    marker.touch()


def down(settings: Settings, *, cancel: bool = True) -> None:
    """Cancel jobs, stop every daemon and process of the cluster by identity, clean its cgroups."""
    if cancel and procs.is_running(settings.layout.run, "slurmctld"):
        jobs = commands.slurm(settings, "squeue", "-h", "-o", "%A", timeout_s=5).stdout.split()
        if jobs:
            commands.slurm(settings, "scancel", *sorted(set(jobs)), timeout_s=10)
    clean_up(settings)


def clean_up(settings: Settings) -> None:
    """Stop what runs and remove what a crash left: processes, records, cgroups, sockets."""
    layout = settings.layout
    recorded = {n: i for n in daemons(settings) if (i := procs.load_record(layout.run, n)) and i.alive}
    slurmds = [i for n, i in recorded.items() if n.startswith("slurmd-")]
    procs.stop(slurmds, 3)
    for name in ("slurmctld", "slurmdbd", "mariadb", "munged"):
        if name == "slurmdbd":
            _kill_members(settings, keep={i.pid for i in recorded.values()})
        if name in recorded:
            procs.stop([recorded[name]], 10)
    _kill_members(settings, keep=set())
    for node in settings.node_names:
        for directory in cgroups.directories_of(node):
            cgroups.remove(directory)
    for path in layout.run.glob("*.proc.json") if layout.run.is_dir() else ():
        path.unlink(missing_ok=True)


def _kill_members(settings: Settings, keep: set[int]) -> None:
    for _ in range(5):
        pids = [pid for pid in members.of_cluster(settings) if pid not in keep]
        found = [identity for pid in pids if (identity := procs.identify(pid))]
        if not found:
            return
        procs.kill_now(found)


def report_up(settings: Settings) -> None:
    """One line about the cluster that runs."""
    version = commands.slurm_version()
    timers = f"timers {settings.timers}, cgroup {settings.cgroup}, accounting {'on' if settings.accounting else 'off'}"
    say(f"up after {elapsed():.1f} s: Slurm {version}, {settings.nodes} nodes, {timers}, in {settings.directory}")
