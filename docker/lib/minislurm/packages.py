"""Debian packages: installed when missing, without letting one of them start a system service."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minislurm.errors import MiniSlurmError
from minislurm.say import say

POLICY = Path("/usr/sbin/policy-rc.d")
# Program -> package that brings it.
SLURM_PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "squeue": "slurm-client",
    "munged": "munge",
}
ACCOUNTING_PROGRAMS = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-install-db": "mariadb-server"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def program(name: str) -> str | None:
    """Full path of a system program (sbin included), or None."""
    return shutil.which(name, path=PATH)


def require_program(name: str, package: str) -> str:
    """Full path of a program, after installing its package if it is missing."""
    found = program(name)
    if found is None:
        install([package])
        found = program(name)
    if found is None:
        raise MiniSlurmError(f"the package {package} is installed but brings no program {name}.")
    return found


def ensure(programs: dict[str, str]) -> None:
    """Install the packages whose programs are missing."""
    missing = sorted({package for name, package in programs.items() if program(name) is None})
    if missing:
        install(missing)


def available(package: str) -> bool:
    """Whether this Debian has a package of that name (docker-cli is part of docker.io before Debian 13)."""
    cache = program("apt-cache")
    return (
        cache is not None and subprocess.run([cache, "show", package], capture_output=True, timeout=60).returncode == 0
    )


def install(packages: list[str]) -> None:
    """apt-get install, refreshing the lists only if the first try fails."""
    apt = program("apt-get")
    names = " ".join(packages)
    if apt is None:
        raise MiniSlurmError(f"missing packages ({names}) and no apt-get to install them with.")
    if os.geteuid() != 0:
        raise MiniSlurmError(f"missing packages ({names}); only root can install them.")
    say(f"installing packages: {names} ...")
    argv = [apt, "install", "-y", "-q", "--no-install-recommends", *packages]
    with _no_service_starts():
        result = _apt(argv)
        if result.returncode != 0:
            _apt([apt, "update", "-q"])
            result = _apt(argv)
    if result.returncode != 0:
        last = next((line for line in reversed(result.stdout.splitlines()) if line.strip()), "no message")
        raise MiniSlurmError(f"apt-get could not install {names}: {last}")


def _apt(argv: list[str]) -> subprocess.CompletedProcess[str]:
    env = {"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    env |= {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
    return subprocess.run(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Have Debian's invoke-rc.d refuse to start services meanwhile; an existing policy is left alone."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
