"""The cluster as containers: rendered Compose file, start, stop, and what Slurm says inside."""

from __future__ import annotations

import os
import secrets
import subprocess
from dataclasses import replace
from pathlib import Path
from string import Template

from minislurm import confgen, engine, image, ports, procs, subnets, tree
from minislurm.errors import MiniSlurmError
from minislurm.say import elapsed, say
from minislurm.settings import CONF, Settings, save_settings

UID = 4242


def services(settings: Settings) -> dict[str, str]:
    """Service -> role, in the order they start."""
    database = {"database": "database", "slurmdbd": "slurmdbd"} if settings.accounting else {}
    return {**database, "controller": "controller", **dict.fromkeys(settings.node_names, "node"), "login": "login"}


def addresses(settings: Settings) -> dict[str, str]:
    """Service -> its fixed address."""
    return subnets.addresses(settings.subnet, list(services(settings)))


def container(settings: Settings, service: str) -> str:
    return f"{settings.cluster_name}-{service}"


def running(settings: Settings) -> list[str]:
    """Services whose container runs."""
    wanted = {container(settings, name): name for name in services(settings)}
    done = engine.docker("ps", "--format", "{{.Names}}")
    return [wanted[line] for line in done.stdout.split() if line in wanted]


def health(settings: Settings) -> dict[str, str]:
    """Service -> docker's words about its container, such as 'Up 2 minutes (healthy)'."""
    wanted = {container(settings, name): name for name in services(settings)}
    out = engine.docker("ps", "-a", "--format", "{{.Names}}\t{{.Status}}").stdout
    rows = [line.split("\t", 1) for line in out.splitlines() if "\t" in line]
    return {wanted[name]: state for name, state in rows if name in wanted}


def slurm(settings: Settings, *argv: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands as root on the controller."""
    return engine.docker("exec", container(settings, "controller"), *argv, timeout_s=timeout_s)


def up(settings: Settings) -> Settings:
    """Build what is missing and start everything; returns the settings with ports filled in."""
    engine.require()
    tag = image.ensure(settings.slurm or "24.11")
    clean_up(settings)
    base = ports.choose_base(settings.port_base, 4, ports.bases_of_others(settings))
    subnet = settings.subnet or subnets.choose()
    started = replace(settings, port_base=base, cgroup="none", slurm=settings.slurm or "24.11", subnet=subnet)
    try:
        _write(started, tag)
        save_settings(started)
        _compose(started, "up", "-d", "--no-build", what="starting the containers")
        _wait(started)
    except BaseException:
        clean_up(started)
        raise
    return started


def _write(settings: Settings, tag: str) -> None:
    """Directories, configuration and the Compose file, readable by everybody but the secrets."""
    layout = settings.layout
    for path in (layout.root, layout.etc, layout.log, layout.spool, layout.shared, layout.state, layout.root / "home"):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)
    for name, size in (("storage.pass", 16), ("munge.key", 128)):
        secret = layout.etc / name
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_hex(size), encoding="ascii")
    _copy_certificates(layout.etc / "host-ca.crt")
    major, minor = (int(part) for part in settings.slurm.split("."))
    secret_text = (layout.etc / "storage.pass").read_text(encoding="ascii")
    place = _place(settings)
    rendered = confgen.render_all(settings, place, cgroup="none", storage_pass=secret_text, version=(major, minor))
    rendered["compose.yaml"] = _compose_file(settings, tag, place)
    for name, text in rendered.items():
        tree.write_file(layout.etc / name, text, mode=0o600 if name in tree.SECRET else 0o644)


def _place(settings: Settings) -> confgen.Place:
    layout = settings.layout
    return confgen.Place(
        controller="controller",
        dbd_host="slurmdbd",
        dbd_address="slurmdbd",
        storage_host="database",
        bind_address="0.0.0.0",
        db_client="%",
        etc_dir="/run/mini-slurm",
        run_dir="/run/mini-slurm",
        log_dir=str(layout.log),
        state_dir=str(layout.state),
        spool_dir=str(layout.spool),
        db_dir=str(layout.database),
        device_dir="/dev/mini-slurm",
        munge_socket="/run/munge/munge.socket.2",
        node_addresses={node: (node, addresses(settings)[node], 6818) for node in settings.node_names},
        slurmctld_port=6817,
        slurmdbd_port=6819,
        mariadb_port=3306,
    )


def _compose_file(settings: Settings, tag: str, place: confgen.Place) -> str:
    one = Template((CONF / "service.yaml.in").read_text(encoding="utf-8"))
    port = {"login": f'"127.0.0.1:{settings.ports["ssh"]}:22"'}
    name = settings.cluster_name
    blocks = [
        one.substitute(
            service=service,
            role=role,
            cluster_name=name,
            published=port.get(role, ""),
            address=addresses(settings)[service],
        )
        for service, role in services(settings).items()
    ]
    return Template((CONF / "compose.yaml.in").read_text(encoding="utf-8")).substitute(
        image=tag,
        root=str(settings.layout.root),
        user=settings.user,
        uid=UID,
        subnet=settings.subnet,
        hosts=", ".join(f'"{service}:{address}"' for service, address in addresses(settings).items()),
        accounting="yes" if settings.accounting else "no",
        gpus=settings.gpus,
        mariadb_port=place.mariadb_port,
        slurmdbd_port=place.slurmdbd_port,
        slurmctld_port=place.slurmctld_port,
        services="".join(blocks).rstrip(),
    )


def _copy_certificates(target: Path) -> None:
    """The certificates that the host's pip trusts, where the containers see them."""
    source = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    if source and Path(source).is_file():
        tree.write_file(target, Path(source).read_text(encoding="utf-8"), mode=0o644)


def _compose(settings: Settings, *argv: str, what: str) -> None:
    """Run Compose on the cluster's file."""
    file = settings.layout.etc / "compose.yaml"
    command = [*engine.compose_command(), "-f", str(file), "-p", settings.cluster_name, *argv]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise MiniSlurmError(f"{what} failed: {engine.last_line(done.stderr or done.stdout)}")


def _wait(settings: Settings) -> None:
    """Until all nodes answer; a container that ended meanwhile is named with its last words."""
    expected = set(services(settings))

    def lost() -> set[str]:
        return expected - set(running(settings))

    procs.wait_until(lambda: nodes_ready(settings) or bool(lost()), 90, 0.5)
    if gone := sorted(lost()):
        logs = engine.docker("logs", "--tail", "5", container(settings, gone[0]))
        raise MiniSlurmError(f"the container {gone[0]} ended: {engine.last_line(logs.stderr + logs.stdout)}")
    if not nodes_ready(settings):
        raise MiniSlurmError(f"nodes not idle within 90 s: {node_states(settings)} (logs in {settings.layout.log})")
    if settings.accounting:
        for argv in (("account", "lab", "Description=lab"), ("user", settings.user, "Account=lab")):
            slurm(settings, "sacctmgr", "-i", "add", *argv)


def node_states(settings: Settings) -> dict[str, str]:
    """node -> state as sinfo spells it; empty when the controller does not answer."""
    out = slurm(settings, "sinfo", "-h", "-N", "-p", "batch", "-o", "%N %T", timeout_s=15).stdout
    return dict(line.split(maxsplit=1) for line in out.splitlines() if len(line.split()) == 2)


def nodes_ready(settings: Settings) -> bool:
    """Whether every node answers."""
    states = node_states(settings)
    return len(states) == settings.nodes and all(
        s in ("idle", "mixed", "allocated", "completing") for s in states.values()
    )


def version(settings: Settings) -> str:
    """Slurm's version inside, such as 24.11.5."""
    words = slurm(settings, "scontrol", "-V").stdout.split()
    return words[1] if len(words) > 1 else settings.slurm


def down(settings: Settings) -> None:
    """Cancel jobs, then remove the containers, their network and the volume (not the directory behind it)."""
    if "controller" in running(settings):
        jobs = slurm(settings, "squeue", "-h", "-o", "%A", timeout_s=10).stdout.split()
        if jobs:
            slurm(settings, "scancel", *sorted(set(jobs)), timeout_s=15)
    clean_up(settings)


def clean_up(settings: Settings) -> None:
    """Remove containers, network and volume of the cluster, also half-made ones."""
    if not engine.answers():
        return
    label = f"label=com.docker.compose.project={settings.cluster_name}"
    found = engine.docker("ps", "-aq", "--filter", label).stdout.split()
    if found:
        engine.docker("rm", "-f", "-v", *found, timeout_s=120)
    for kind in ("network", "volume"):
        names = engine.docker(kind, "ls", "-q", "--filter", label).stdout.split()
        if names:
            engine.docker(kind, "rm", *names, timeout_s=60)


def report_up(settings: Settings) -> None:
    """One line about the cluster that runs."""
    kind = f"timers {settings.timers}, accounting {'on' if settings.accounting else 'off'}"
    say(
        f"up after {elapsed():.1f} s: Slurm {version(settings)} in containers, {settings.nodes} nodes, {kind}, "
        f"ssh port {settings.ports['ssh']}, in {settings.directory}"
    )
