"""The files of the native cluster: directories with their owners, imitated GPUs, configuration."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
from pathlib import Path

from minislurm import commands, confgen, users
from minislurm.settings import Settings

# Files with the database's password, and who has to read them.
SECRET = {"slurmdbd.conf": "slurm", "mariadb.cnf": "mysql", "mariadb-init.sql": "mysql"}


def make_tree(settings: Settings) -> pwd.struct_passwd:
    layout = settings.layout
    slurm_user = pwd.getpwnam("slurm")
    layout.root.mkdir(parents=True, exist_ok=True)
    owners = {layout.state: "slurm", layout.log: "slurm", layout.run: "slurm", layout.munge_socket.parent: "munge"}
    if settings.accounting:
        owners[layout.database] = "mysql"
    for path in (layout.root, layout.etc, layout.spool, layout.devices, layout.shared):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    for path, owner in owners.items():
        path.mkdir(exist_ok=True)
        shutil.chown(path, owner, owner)
        path.chmod(0o755)
    layout.run.chmod(0o1777)  # pid files and sockets of mysql, munge and slurm
    _make_devices(settings)
    user = users.ensure_user(settings.user, layout.home(settings.user))
    users.make_dirs(settings, user, _profile(settings))
    for node in settings.node_names:
        (layout.spool / node).mkdir(exist_ok=True)
    os.chown(layout.spool, slurm_user.pw_uid, slurm_user.pw_gid)
    return user


def _profile(settings: Settings) -> str:
    layout = settings.layout
    return f'export SLURM_CONF={layout.slurm_conf}\nexport PATH="{layout.venv}/bin:$PATH"\n'


def _make_devices(settings: Settings) -> None:
    """Character devices that behave like /dev/null; links to it where mknod is not allowed."""
    for number in range(settings.gpus):
        path = settings.layout.devices / f"gpu{number}"
        if path.is_char_device():
            continue
        path.unlink(missing_ok=True)
        try:
            os.mknod(path, 0o20666, os.makedev(1, 3))
            path.chmod(0o666)
            path.open("wb").close()  # a nodev mount makes the node but refuses to open it
        except OSError:
            path.unlink(missing_ok=True)
            path.symlink_to("/dev/null")


def write_config(settings: Settings) -> None:
    layout = settings.layout
    secret = layout.etc / "storage.pass"
    if not secret.exists():
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(16), encoding="ascii")
    all_ports = settings.ports
    place = confgen.Place(
        controller="localhost(127.0.0.1)",  # works without a hosts file, too
        dbd_host="localhost",
        dbd_address="127.0.0.1",
        storage_host="127.0.0.1",
        bind_address="127.0.0.1",
        db_client="127.0.0.1",
        etc_dir=str(layout.etc),
        run_dir=str(layout.run),
        log_dir=str(layout.log),
        state_dir=str(layout.state),
        spool_dir=str(layout.spool),
        db_dir=str(layout.database),
        device_dir=str(layout.devices),
        munge_socket=str(layout.munge_socket),
        node_addresses={node: ("localhost", "127.0.0.1", all_ports[f"slurmd-{node}"]) for node in settings.node_names},
        slurmctld_port=all_ports["slurmctld"],
        slurmdbd_port=all_ports["slurmdbd"],
        mariadb_port=all_ports["mariadb"],
    )
    version = tuple(int(part) for part in commands.slurm_version().split(".")[:2])
    rendered = confgen.render_all(
        settings,
        place,
        cgroup=settings.cgroup,
        storage_pass=secret.read_text(encoding="ascii"),
        version=(version[0], version[1]),
    )
    for name, text in rendered.items():
        write_file(layout.etc / name, text, mode=0o600 if name in SECRET else 0o644)
        if name in SECRET:
            shutil.chown(layout.etc / name, SECRET[name], SECRET[name])


def write_file(path: Path, text: str, *, mode: int) -> None:
    """Write a new file that never was readable for more than `mode` says."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
