"""The container engine: found, asked, and for tests started by hand and stopped again."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from minislurm import packages, procs
from minislurm.errors import MiniSlurmError
from minislurm.say import say

RUN = Path("/run/mini-slurm-engine")


def docker(*argv: str, timeout_s: float = 60, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the docker client; rc 127 where there is none, 124 when it hangs."""
    program = shutil.which("docker")
    if program is None:
        return subprocess.CompletedProcess(argv, 127, "", "the docker client is not installed")
    try:
        return subprocess.run(
            [program, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=timeout_s, env={**os.environ, **(env or {})},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"docker {argv[0]} did not answer within {timeout_s:g} s")


def check(*argv: str, what: str, timeout_s: float = 60) -> str:
    """Output of a docker command that has to work."""
    done = docker(*argv, timeout_s=timeout_s)
    if done.returncode != 0:
        raise MiniSlurmError(f"{what} failed: {last_line(done.stderr or done.stdout)}")
    return done.stdout


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else "no message"


def answers() -> bool:
    """Whether a docker engine answers."""
    return docker("version", "--format", "{{.Server.Version}}", timeout_s=20).returncode == 0


def require() -> None:
    """An engine that answers and a Compose to drive it, or one sentence."""
    if shutil.which("docker") is None:
        raise MiniSlurmError("docker is not installed; install it, or use --native.")
    if not answers():
        reason = last_line(docker("version", timeout_s=20).stderr)
        raise MiniSlurmError(f"no docker engine answers ({reason}); start one, or use --native.")
    compose_command()


def compose_command() -> list[str]:
    """`docker compose` (v2) or docker-compose (v1)."""
    if docker("compose", "version", timeout_s=20).returncode == 0:
        return [shutil.which("docker") or "docker", "compose"]
    old = shutil.which("docker-compose")
    if old is None:
        raise MiniSlurmError("Docker Compose is missing; install docker-compose (Debian) or Docker's compose plugin.")
    return [old]


@contextmanager
def running() -> Iterator[None]:
    """An engine for the time of a test: the one that answers, or dockerd started here and stopped again."""
    if packages.program("docker") is None and shutil.which("docker") is None:
        packages.install(["docker.io", *(["docker-cli"] if packages.available("docker-cli") else [])])
    if not answers():
        packages.ensure({"dockerd": "docker.io", "containerd": "containerd", "iptables": "iptables"})
    if docker("compose", "version", timeout_s=20).returncode != 0:
        packages.ensure({"docker-compose": "docker-compose"})
    if answers():
        yield
        return
    started = _start()
    try:
        yield
    finally:
        procs.stop([started], 30)
        say("dockerd stopped")


def _start() -> procs.Identity:
    RUN.mkdir(mode=0o755, exist_ok=True)
    log = RUN / "dockerd.log"
    log.unlink(missing_ok=True)
    program = packages.require_program("dockerd", "docker.io")
    env = {**os.environ, "PATH": packages.PATH}
    host = os.environ.get("DOCKER_HOST", "")
    argv = [program, "--pidfile", str(RUN / "dockerd.pid"), *(["-H", host] if host.startswith("unix://") else [])]
    identity = procs.start_daemon(RUN, "dockerd", argv, env=env, log=log)
    if not procs.wait_until(lambda: answers() or not identity.alive, 60, 0.5) or not identity.alive:
        text = log.read_text(encoding="utf-8", errors="replace")
        procs.stop([identity], 10)
        raise MiniSlurmError(f"dockerd does not start on this machine: {last_line(text)} (log: {log})")
    time.sleep(0.2)
    say("dockerd started for this test")
    return identity
