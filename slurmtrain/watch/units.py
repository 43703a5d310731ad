"""What starts the watcher without a person: a systemd user unit, a cron line, a scrontab entry; as text to install.

Each language has its own traps: ``%`` is a specifier to systemd, a line break to cron and a pattern in Slurm's file
names; ``$`` is a variable to systemd.
"""

from __future__ import annotations

import shutil
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.errors import NotFoundError, UsageError
from slurmtrain.render.quoting import escape_file_pattern, quote_argv, quote_directive, quote_sh

KINDS = ("systemd", "cron", "scrontab")
UNIT = "slurmtrain-watch.service"
_EVERY_MIN = 5
_MAX_CRON = 998  # MAX_COMMAND of Vixie's cron
_SLURMS = ("SLURM_CONF", "SLURM_CONF_SERVER")


@dataclass(frozen=True, slots=True)
class Installation:
    """How to call slurmtrain from anywhere: absolute words, and the variables that it and Slurm need."""

    program: tuple[str, ...]
    variables: Mapping[str, str]
    store: Path


def find_installation(store: Path, environ: Mapping[str, str]) -> Installation:
    """The slurmtrain that runs now. Raises ``NotFoundError`` without Slurm's commands, ``UsageError`` for odd paths."""
    squeue = shutil.which("squeue", path=environ.get("PATH"))
    if squeue is None:
        raise NotFoundError("squeue is not on the PATH: print this on a host from which Slurm's commands work")
    folders = dict.fromkeys([str(Path(squeue).parent), "/usr/local/bin", "/usr/bin", "/bin"])
    script = Path(sys.executable).with_name("slurmtrain")
    program = (str(script),) if script.is_file() else (sys.executable, "-m", "slurmtrain")
    variables = {"PATH": ":".join(folders), **{name: environ[name] for name in _SLURMS if environ.get(name)}}
    for text in (*program, *variables.values(), str(store)):
        if not text.isprintable() or "\\" in text:
            raise UsageError(f"{text!r} has a backslash or a control character in it: no unit can be written for it")
    return Installation(program, variables, store)


def build_unit(kind: str, installed: Installation, interval_s: float, directives: Sequence[str] = ()) -> str:
    """The text for one of ``KINDS``; ``directives`` are sbatch's options for ``scrontab``."""
    if kind == "systemd":
        return build_systemd(installed, interval_s)
    return build_cron(installed) if kind == "cron" else build_scrontab(installed, directives)


def build_systemd(installed: Installation, interval_s: float) -> str:
    """A user service that watches for ever."""
    command = [*installed.program, "watch", "--interval", f"{interval_s:g}", "--store", str(installed.store)]
    if set(command[0]) & set("$\"'"):  # not taken in the name of the program, only in its arguments
        command.insert(0, "/usr/bin/env")
    variables = [f"{name}={value}" for name, value in installed.variables.items()]
    lines = [
        f"# ~/.config/systemd/user/{UNIT}",
        "#",
        f"#   slurmtrain watch --print-unit systemd >~/.config/systemd/user/{UNIT}",
        f"#   systemctl --user daemon-reload && systemctl --user enable --now {UNIT}",
        "#   loginctl enable-linger    # so that it goes on when you log out; a site may not allow it",
        "#   journalctl --user -u slurmtrain-watch",
        "",
        "[Unit]",
        f"Description=slurmtrain: looks after the runs in {_specifier(str(installed.store))}",
        "",
        "[Service]",
        *(f"Environment={_systemd_word(text)}" for text in variables),
        "ExecStart=" + " ".join(_systemd_word(word.replace("$", "$$")) for word in command),
        "Restart=always",
        "RestartSec=60",
        "RestartPreventExitStatus=2 5 6",  # a wrong configuration is no reason to try again
        "Nice=10",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def build_cron(installed: Installation) -> str:
    """One line that looks every five minutes, at minutes that differ from user to user."""
    command = _look_once(installed).replace("%", "\\%")
    if len(command) > _MAX_CRON:
        raise UsageError(f"the line would be {len(command)} characters long, cron takes {_MAX_CRON}; shorten the paths")
    return "\n".join(
        [
            "# slurmtrain: looks after the runs of one store. Add the line with `crontab -e` on one login node.",
            f"{_minutes(installed)} * * * * {command}",
        ]
    ) + "\n"  # fmt: skip


def build_scrontab(installed: Installation, directives: Sequence[str]) -> str:
    """An entry for Slurm's own cron: a job of seconds every five minutes."""
    log = escape_file_pattern(str(installed.store)) + "/watch-scrontab.log"
    fixed = ["--ntasks=1", "--cpus-per-task=1", "--mem=512M", "--open-mode=append"]
    given = [
        *fixed,
        *directives,
        f"--output={quote_directive(log)}",
        f"--chdir={quote_directive(str(installed.store))}",
    ]
    if not any(option.startswith("--time=") for option in given):
        given.append("--time=00:10:00")
    lines = [
        "# slurmtrain: looks after the runs of one store. Needs ScronParameters=enable in slurm.conf.",
        "#   (scrontab -l; slurmtrain watch --print-unit scrontab) | scrontab -",
        *(f"#SCRON {option}" for option in ["--job-name=slurmtrain-watch", *given]),
        f"{_minutes(installed)} * * * * {_look_once(installed)}",
    ]
    return "\n".join(lines) + "\n"


def _look_once(installed: Installation) -> str:
    variables = [f"{name}={quote_sh(value)}" for name, value in installed.variables.items()]
    return " ".join([*variables, quote_argv([*installed.program, "watch", "--once", "--store", str(installed.store)])])


def _minutes(installed: Installation) -> str:
    """``3-59/5``: the users of a cluster must not all ask slurmctld in the same second."""
    return f"{zlib.crc32(str(installed.store).encode()) % _EVERY_MIN}-59/{_EVERY_MIN}"


def _specifier(text: str) -> str:
    return text.replace("%", "%%")


def _systemd_word(text: str) -> str:
    """One word in systemd's quotes (man systemd.syntax)."""
    return '"' + _specifier(text).replace('"', '\\"') + '"'
