"""The researcher: an ordinary account without rights, with a home and a store in the cluster's directory."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from pathlib import Path

from minislurm.errors import MiniSlurmError
from minislurm.packages import PATH, require_program
from minislurm.settings import Settings

WANTED_UID = 4242


def ensure_user(name: str, home: Path) -> pwd.struct_passwd:
    """The account, made when missing."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        pass
    argv = [require_program("useradd", "passwd"), "--home-dir", str(home), "--no-create-home", "--shell", "/bin/bash"]
    if not _uid_taken(WANTED_UID):
        argv += ["--uid", str(WANTED_UID)]
    result = subprocess.run([*argv, name], capture_output=True, text=True, timeout=60)
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise MiniSlurmError(f"the user {name} could not be made: {result.stderr.strip()}") from None


def _uid_taken(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
        return True
    except KeyError:
        return any(group.gr_gid == uid for group in grp.getgrall())


def make_dirs(settings: Settings, user: pwd.struct_passwd, profile: str) -> None:
    """Home (0755) and store (0700), owned by the user, and a profile that finds the cluster."""
    layout = settings.layout
    for path, mode in ((layout.home(user.pw_name), 0o755), (layout.store(user.pw_name), 0o700)):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        os.chown(path, user.pw_uid, user.pw_gid)
    for name in (".bashrc", ".profile"):
        rc = layout.home(user.pw_name) / name
        if not rc.exists():
            rc.write_text(profile, encoding="utf-8")
            os.chown(rc, user.pw_uid, user.pw_gid)


def login_env(settings: Settings, user: pwd.struct_passwd) -> dict[str, str]:
    """What the user's shell starts with: nothing of root's environment but the terminal."""
    layout = settings.layout
    env = {
        "HOME": str(layout.home(user.pw_name)),
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": "/bin/bash",
        "PATH": f"{layout.venv}/bin:{PATH}",
        "SLURM_CONF": str(layout.slurm_conf),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "MINI_SLURM_JSON": str(layout.cluster_json),
    }
    env |= {key: os.environ[key] for key in ("TERM", "COLORTERM", "TZ") if key in os.environ}
    return env


def become(user: pwd.struct_passwd, env: dict[str, str], cwd: Path, argv: list[str]) -> None:
    """Replace this process by `argv` run as the user; never returns."""
    os.chdir(cwd)
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    try:
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    except OSError as exc:
        raise MiniSlurmError(f"{argv[0]} cannot be run as {user.pw_name}: {exc.strerror}.", code=127) from exc
