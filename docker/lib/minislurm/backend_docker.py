"""What the verbs need of the container cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from minislurm import containers, describe, engine, venv
from minislurm.errors import MiniSlurmError
from minislurm.settings import REPO, Settings

up, down, clean_up, running = containers.up, containers.down, containers.clean_up, containers.running
ready, report_up = containers.nodes_ready, containers.report_up

# pip's index as the caller has it; paths of the host mean nothing in the container.
PASSED_ON = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
SHARED_DAEMONS = ("slurmctld", "slurmdbd", "mariadb")
SERVICE_OF = {"slurmctld": "controller", "slurmdbd": "slurmdbd", "mariadb": "database"}


def check_may(what: str) -> None:
    """Containers need an engine that answers, not root."""
    engine.require()
    del what


def services(settings: Settings) -> list[str]:
    return list(containers.services(settings))


def status_rows(settings: Settings) -> list[tuple[str, str, str]]:
    """(service, docker's words, node state) of every container."""
    health, states = containers.health(settings), containers.node_states(settings)
    return [
        (name, health.get(name, "no container"), states.get(name, "unknown") if name in settings.node_names else "")
        for name in services(settings)
    ]


def facts(settings: Settings) -> dict[str, Any]:
    """The content of cluster.json."""
    key = settings.layout.home(settings.user) / ".ssh" / "id_ed25519"
    return {
        **describe.common_facts(settings, containers.version(settings), containers.UID, containers.UID),
        "bin_dir": "/usr/bin",
        "sbin_dir": "/usr/sbin",
        "containers": {name: containers.container(settings, name) for name in services(settings)},
        "ports": {"ssh": settings.ports["ssh"]},
        "ssh": {"host": "127.0.0.1", "port": settings.ports["ssh"], "user": settings.user, "key": str(key)},
        "pids": {},
    }


def install(settings: Settings, extras: Iterable[str]) -> bool:
    """slurmtrain into the virtual environment that all containers share, if it changed."""
    return venv.ensure(
        settings.layout.venv, extras, f"container {settings.slurm}", lambda text: _install(settings, text)
    )


def _install(settings: Settings, extras: str) -> None:
    """Copy the sources to where the containers see them and let the login node's pip install them."""
    layout = settings.layout
    source = layout.root / "src"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    for name in venv.SOURCES:
        path = REPO / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, source / name)
    pip = [str(layout.venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    commands = [[*pip, f"{source}{extras}"]]
    flavour = layout.venv / ".slurm-release"
    if not flavour.exists() or flavour.read_text(encoding="ascii") != settings.slurm:  # another Debian's Python
        commands.insert(0, ["python3", "-m", "venv", "--clear", str(layout.venv)])
    for argv in commands:
        done = engine.docker("exec", *_pip_env(settings), _login(settings), *argv, timeout_s=900)
        if done.returncode != 0:
            raise MiniSlurmError(f"slurmtrain could not be installed: {venv.reason(done.stderr + done.stdout)}")
    flavour.write_text(settings.slurm, encoding="ascii")


def _pip_env(settings: Settings) -> list[str]:
    values = {name: os.environ[name] for name in (*PASSED_ON, *PROXIES) if name in os.environ}
    values["PIP_CACHE_DIR"] = str(settings.layout.root / "pip-cache")  # outlives the containers
    certificates = settings.layout.etc / "host-ca.crt"
    if certificates.exists():
        values["PIP_CERT"] = str(certificates)
    return [word for name, value in values.items() for word in ("-e", f"{name}={value}")]


def _login(settings: Settings) -> str:
    return containers.container(settings, "login")


def shell(settings: Settings, argv: list[str]) -> int:
    """A shell or a command as the researcher on the login node."""
    layout = settings.layout
    terminal = ["-it"] if sys.stdin.isatty() and sys.stdout.isatty() else ["-i"]
    env = {
        "HOME": str(layout.home(settings.user)),
        "USER": settings.user,
        "LOGNAME": settings.user,
        "PATH": f"{layout.venv}/bin:/usr/local/bin:/usr/bin:/bin",
        "MINI_SLURM_JSON": str(layout.cluster_json),
        "LANG": "C.UTF-8",
    }
    words = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
    where = ["-u", str(containers.UID), "-w", str(layout.store(settings.user))]
    docker = shutil.which("docker") or "docker"
    command = [docker, "exec", *terminal, *where, *words, _login(settings), *(argv or ["bash", "-i"])]
    return subprocess.run(command).returncode


def fault(settings: Settings, action: str, target: str) -> None:
    """The same failures as on the native cluster; a node's power loss is the end of its container."""
    if action == "heal":
        _heal(settings, settings.node_names if target == "all" else target.split(","))
    elif target in settings.node_names:
        _node_fault(settings, action, target)
    elif target in SERVICE_OF and action != "power-off":
        _service_fault(settings, action, SERVICE_OF[target])
    else:
        names = ", ".join([*settings.node_names, *SERVICE_OF])
        raise MiniSlurmError(f"{action} {target}: expected one of {names} (power-off: a node).", code=2)


def _node_fault(settings: Settings, action: str, node: str) -> None:
    name = containers.container(settings, node)
    if action == "power-off":
        engine.check("kill", name, what=f"killing {name}")
    elif action == "start":
        _start_node(settings, node)
    else:
        number = {"kill": "KILL", "stop": "STOP", "cont": "CONT", "term": "TERM"}[action]
        engine.check("exec", name, "pkill", f"-{number}", "-x", "slurmd", what=f"sending {number} to slurmd on {node}")


def _service_fault(settings: Settings, action: str, service: str) -> None:
    verb = {"kill": "kill", "stop": "pause", "cont": "unpause", "term": "stop", "start": "start"}[action]
    name = containers.container(settings, service)
    engine.check(verb, name, what=f"docker {verb} {name}")


def _start_node(settings: Settings, node: str) -> None:
    name = containers.container(settings, node)
    if node not in running(settings):
        engine.check("start", name, what=f"starting {name}")
    elif engine.docker("exec", name, "pidof", "slurmd").returncode != 0:
        engine.check("exec", "-d", name, "slurmd", "-D", "-N", node, what=f"starting slurmd on {node}")


def _heal(settings: Settings, nodes: list[str]) -> None:
    states = containers.health(settings)
    for service in [*containers.services(settings)]:
        name = containers.container(settings, service)
        if "Paused" in states.get(service, ""):
            engine.check("unpause", name, what=f"unpausing {name}")
        if service in nodes:
            _start_node(settings, service)
            engine.docker("exec", name, "pkill", "-CONT", "-x", "slurmd")
        elif service not in settings.node_names and not states.get(service, "").startswith("Up"):
            engine.check("start", name, what=f"starting {name}")
