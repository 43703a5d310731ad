"""Shipping through a real sshd: another storage of fsspec's, where files are renamed into place."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ceph import free_port
from cluster import wait_until
from ship_env import ship_venv

__all__ = ["ship_venv"]

pytestmark = pytest.mark.native_only

RUN_ID = "t-20261130-0000-aaaaaaaa"


@dataclass
class Server:
    """An sshd of the test's own, and the home of a user who may log in there."""

    port: int
    home: Path

    def known(self) -> None:
        """As after a first login by hand."""
        key = (self.home / "host.pub").read_text().split()
        (self.home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{self.port} {key[0]} {key[1]}\n")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if not Path("/usr/sbin/sshd").exists():
        apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends"]
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run([*apt, "openssh-server"], check=True, stdout=subprocess.DEVNULL, timeout=600, env=env)
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    for name in ("host", ".ssh/id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / name], check=True)
    shutil.copy(home / ".ssh/id_ed25519.pub", home / "authorized")
    Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    options = {
        "ListenAddress": "127.0.0.1", "Port": port, "HostKey": home / "host", "AuthorizedKeysFile": home / "authorized",
        "StrictModes": "no", "PidFile": "none", "UsePAM": "no", "Subsystem": "sftp internal-sftp",
        "PermitRootLogin": "yes",
    }  # fmt: skip
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    process = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", "/dev/null", *words], stderr=subprocess.DEVNULL)
    time.sleep(1)
    yield Server(port, home)
    process.kill()
    process.wait()


def test_a_run_goes_to_a_host_that_is_known_and_to_no_other(server: Server, ship_venv: Path, tmp_path: Path) -> None:
    run = tmp_path / "store/runs" / RUN_ID
    for name in ("journal", "logs", "ship"):
        (run / name).mkdir(parents=True)
    there = tmp_path / "there"
    url = f"sftp://127.0.0.1:{server.port}{there}"
    (run / "plan.json").write_text(
        f'{{"run_id": "{RUN_ID}", "spec": {{"command": ["x"], "ship": {{"url": "{url}"}}}}}}'
    )
    (run / "logs/train-1.log").write_text("one\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz123456\n")

    def ship() -> subprocess.CompletedProcess[str]:
        argv = [ship_venv / "bin/slurmtrain", "ship", RUN_ID, "--store", tmp_path / "store"]
        env = {"HOME": str(server.home), "PATH": os.defpath}
        return subprocess.run(argv, capture_output=True, text=True, timeout=200, env=env, check=False)

    def answers() -> bool:
        done = ship()
        return "host key is not in ~/.ssh/known_hosts" in done.stderr and done.returncode == 1

    wait_until(answers, 120, "the host is refused while nobody knows it", 1.0)
    assert not there.exists()
    server.known()
    done = ship()
    assert done.returncode == 0, done.stderr
    assert (there / RUN_ID / "logs/train-1.log").read_text() == "one\nHF_TOKEN=***\n"
    with (run / "logs/train-1.log").open("a") as log:
        log.write("two\n")
    assert ship().returncode == 0
    assert (there / RUN_ID / "logs/train-1.log").read_text() == "one\nHF_TOKEN=***\ntwo\n"
    assert not list(there.rglob("*slurmtrain-part*"))
