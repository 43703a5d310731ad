"""The cluster's container image: Debian's Slurm of one release on a base that may have to be made here."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from minislurm import engine, packages
from minislurm.errors import MiniSlurmError
from minislurm.say import say, warn
from minislurm.settings import REPO

SOURCE = REPO / "docker" / "image"
# Slurm release -> Debian release that ships it.
SUITES = {"24.11": "trixie", "26.05": "forky"}
MIRROR = "http://deb.debian.org/debian"


def ensure(release: str) -> str:
    """Name of the image for a Slurm release, built if its sources changed."""
    suite = SUITES[release]
    digest = hashlib.sha256()
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    name = f"mini-slurm:{release}-{digest.hexdigest()[:12]}"
    if engine.docker("image", "inspect", name).returncode == 0:
        return name
    base = _ensure_base(suite)
    say(f"building the image {name} from {base} ...")
    argv = ["build", "--quiet", "--build-arg", f"BASE={base}", *_proxies(), "-t", name, str(SOURCE)]
    engine.check(*argv, what=f"building the image for Slurm {release}", timeout_s=1800)
    return name


def _proxies() -> list[str]:
    names = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    return [word for key in names if key in os.environ for word in ("--build-arg", key)]


def _ensure_base(suite: str) -> str:
    """debian:SUITE-slim, pulled if a registry can be reached, else made with debootstrap."""
    base = f"debian:{suite}-slim"
    if engine.docker("image", "inspect", base).returncode == 0:
        return base
    if engine.docker("pull", "--quiet", base, timeout_s=300).returncode == 0:
        return base
    warn(f"{base} cannot be pulled; making it with debootstrap.")
    if os.geteuid() != 0:
        raise MiniSlurmError(f"{base} cannot be pulled, and only root can make it with debootstrap.")
    with tempfile.TemporaryDirectory(prefix="mini-slurm-base-", dir="/var/tmp") as folder:
        _bootstrap(suite, Path(folder) / "root")
        _import(Path(folder) / "root", base)
    return base


def _bootstrap(suite: str, root: Path) -> None:
    program = packages.require_program("debootstrap", "debootstrap")
    scripts = Path("/usr/share/debootstrap/scripts")
    argv = [program, "--variant=minbase", suite, str(root), MIRROR]
    if not (scripts / suite).exists():
        argv.append(str(scripts / "sid"))  # an older debootstrap does not know newer releases by name
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        raise MiniSlurmError(f"debootstrap of {suite} failed: {engine.last_line(done.stdout + done.stderr)}")
    # Mirrors that stand still serve release files that have run out.
    (root / "etc/apt/apt.conf.d/90mini-slurm").write_text('Acquire::Check-Valid-Until "false";\n', encoding="ascii")
    for path in (root / "var/cache/apt/archives").glob("*.deb"):
        path.unlink()


def _import(root: Path, name: str) -> None:
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        done = subprocess.run(
            ["docker", "import", "-", name], stdin=tar.stdout, capture_output=True, text=True, timeout=600
        )
    if done.returncode != 0 or tar.returncode != 0:
        raise MiniSlurmError(f"docker import of {name} failed: {engine.last_line(done.stderr)}")
