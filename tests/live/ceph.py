"""A real S3 server for tests: Ceph's RADOS gateway with one monitor and one OSD in memory, from Debian's packages.

All of it listens on 127.0.0.1, lies in one directory and needs about 300 MiB while it runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

ACCESS, SECRET = "AKIATESTSHIPPER00000", "shipper/Test+Secret0123456789abcdefghijk"
PACKAGES = ("ceph-mon", "ceph-osd", "radosgw")
_CONF = """\
[global]
fsid = {fsid}
mon_host = v1:127.0.0.1:{mon}
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_bind_msgr2 = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_crush_chooseleaf_type = 0
osd_pool_default_pg_num = 1
osd_pool_default_pgp_num = 1
mon_allow_pool_size_one = true
mon_pg_warn_min_per_osd = 0
mon_max_pg_per_osd = 1000
osd_pool_default_pg_autoscale_mode = off
osd_objectstore = memstore
osd_class_update_on_start = false
osd_crush_update_on_start = false
memstore_device_bytes = 1073741824
osd_memory_target = 939524096
run_dir = {dir}
admin_socket = {dir}/$name.asok
pid_file = {dir}/$name.pid
log_file = {dir}/$name.log
mon_data = {dir}/mon
osd_data = {dir}/osd
osd_class_dir = {classes}
keyring = {dir}/keyring
[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:{port}
rgw_thread_pool_size = 16
rgw_enable_usage_log = false
rgw_enable_gc_threads = false
rgw_enable_lc_threads = false
rgw_enable_quota_threads = false
rgw_run_sync_thread = false
rgw_dynamic_resharding = false
rgw_override_bucket_index_max_shards = 1
rgw_lc_debug_interval = -1
"""


@dataclass
class Ceph:
    """One gateway. ``port`` stays the same when the gateway is stopped and started again."""

    directory: Path
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """What a client needs to know, as users set it."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "default",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> Ceph:
        """Make the cluster and its user; returns once the gateway answers."""
        install()
        self.port = free_port()
        self.directory.mkdir(parents=True, exist_ok=True)
        classes = next(Path("/usr/lib").glob("*/rados-classes"))
        conf = _CONF.format(fsid=uuid.uuid4(), mon=free_port(), port=self.port, dir=self.directory, classes=classes)
        self._conf.write_text(conf)
        (self.directory / "keyring").write_text("")
        mon, fsid = _value(conf, "mon_host"), _value(conf, "fsid")
        self._run("monmaptool", "--create", "--addv", "a", f"[{mon}]", "--fsid", fsid, self._map)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", self._map)
        self._run("ceph-mon", "-i", "a")
        (self.directory / "osd").mkdir()
        self._run("ceph", "osd", "new", uid := str(uuid.uuid4()))
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", uid)
        (self.directory / "osd/fsid").write_text(uid)  # memstore does not take it from the option
        self._run("ceph", "osd", "crush", "add", "osd.0", "1.0", "host=a", "root=default")
        self._run("ceph-osd", "-i", "0")
        self._run(
            "radosgw-admin",
            "user",
            "create",
            "--uid=t",
            "--display-name=t",
            f"--access-key={ACCESS}",
            f"--secret={SECRET}",
        )
        self.start_gateway()
        return self

    def start_gateway(self) -> None:
        self._run("radosgw", "-n", "client.rgw")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.2)
        raise AssertionError(f"the gateway does not answer; see {self.directory}/client.rgw.log")

    def kill_gateway(self) -> None:
        """As a crash would end it."""
        self._kill("client.rgw", signal.SIGKILL)

    def stop(self) -> None:
        for name in ("client.rgw", "osd.0", "mon.a"):
            self._kill(name, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _conf(self) -> Path:
        return self.directory / "ceph.conf"

    @property
    def _map(self) -> str:
        return str(self.directory / "monmap")

    def _run(self, *argv: str) -> str:
        """Output of one command. A monitor that has just started does not know for a moment what it can be asked."""
        for _ in range(30):
            done = subprocess.run(
                [argv[0], "-c", str(self._conf), *argv[1:]] if argv[0] != "monmaptool" else argv,
                capture_output=True, text=True, timeout=120, cwd=self.directory,
            )  # fmt: skip
            if "problem getting command descriptions" not in done.stderr:
                break
            time.sleep(1)
        assert done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _kill(self, name: str, number: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.directory / f"{name}.pid").read_text())
            os.kill(pid, number)
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.05)


def _value(conf: str, name: str) -> str:
    return conf.partition(f"\n{name} = ")[2].partition("\n")[0]


def install() -> None:
    """The packages, unless they are there."""
    if all(shutil.which(name) for name in PACKAGES):
        return
    quiet = {"stdout": subprocess.DEVNULL, "timeout": 600, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    if subprocess.run([*apt, "install", "-y", "--no-install-recommends", *PACKAGES], **quiet).returncode:
        subprocess.run([*apt, "update"], check=True, **quiet)
        subprocess.run([*apt, "install", "-y", "--no-install-recommends", *PACKAGES], check=True, **quiet)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
