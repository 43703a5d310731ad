"""Running rendered scripts for real: bash, a run directory, and small executables in the place of Slurm's."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from slurmtrain.core.spec import Spec
from slurmtrain.render.scripts import Scripts, render_scripts
from slurmtrain.resources import bundled

# An srun that writes down what it was given, and then runs the command as rank 0 of the step would see it.
SRUN = f"""#!{sys.executable}
import json, os, sys
seen = {{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}}
with open(os.environ["FAKE_SRUN_OUT"], "w", errors="surrogateescape") as file:
    json.dump(seen, file)
command = sys.argv[1:]
while command and command[0].startswith("-"):
    command.pop(0)
rank = {{"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "4"}}
os.environ.update(rank | json.loads(os.environ.get("FAKE_RANK", "{{}}")))
os.execvp(command[0], command)
"""
SCONTROL = """#!/bin/bash
if [ "$1 $2" = "show hostnames" ]; then printf 'localhost\\nother\\n'; fi
"""
# A program that writes down its own arguments and environment.
SHOW = """import json, os, sys
json.dump({"argv": sys.argv[1:], "env": dict(os.environ)}, open(os.environ["SHOW_OUT"], "w", errors="surrogateescape"))
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def render(spec: Spec, run_dir: Path, *, agent_python: str = sys.executable, **more: object) -> Scripts:
    return render_scripts(
        spec, run_id=run_dir.name, run_dir=run_dir, agent_python=agent_python, bundled=bundled("templates"), **more
    )


def fake_slurm(folder: Path) -> dict[str, str]:
    """Environment of a job on the batch host, with ``srun`` and ``scontrol`` of ours in front."""
    executable(folder / "bin" / "srun", SRUN)
    executable(folder / "bin" / "scontrol", SCONTROL)
    return {
        "PATH": f"{folder / 'bin'}:{os.defpath}:/usr/bin",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NTASKS": "4",
        "FAKE_SRUN_OUT": str(folder / "srun.json"),
        "SHOW_OUT": str(folder / "show.json"),
    }


def run_launch(script: str, folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    path = folder / "launch.sh"
    path.write_text(script, encoding="utf-8")
    return subprocess.run(
        ["/bin/bash", str(path)], env=dict(env), capture_output=True, text=True, timeout=60, cwd="/", errors="replace"
    )


def read(path: Path) -> dict:
    return json.loads(path.read_text(errors="surrogateescape"))


def sbatch_arguments(line: str) -> list[str]:
    """What sbatch makes of one ``#SBATCH`` line: get_argument() of src/sbatch/opt.c (22.05), character by character."""
    assert line.startswith("#SBATCH")
    text, found, at = line.removeprefix("#SBATCH"), [], 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            return found
        argument, quote, escaped = "", "", False
        while at < len(text) and (quote or not text[at].isspace()):
            char = text[at]
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
                at += 1
                continue
            elif quote:
                if char == quote:
                    quote = ""
                    at += 1
                    continue
            elif char in "\"'":
                quote = char
                at += 1
                continue
            elif char == "#":
                return [*found, argument] if argument else found
            argument += char
            at += 1
        assert not quote, "unmatched quote: sbatch would give up"
        found.append(argument)
