"""The batch script never ends with an exit code that slurm.conf lists: Slurm would requeue the job by itself."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from slurmtrain.core.spec import Spec
from slurmtrain.render.scripts import render_scripts
from slurmtrain.resources import bundled

CONFIG = "RequeueExit             = {}\nRequeueExitHold         = {}\nRequeueTimeout = 1\n"


def finish(folder: Path, code: int, listed: str, held: str, *, scontrol: str = "") -> tuple[int, str]:
    """End a rendered batch script's shell as it would end itself."""
    scripts = render_scripts(
        Spec(command=("x",), workdir="/"), run_id="r", run_dir=folder, agent_python="/p", bundled=bundled("templates")
    )
    functions = re.findall(r"^\w+\(\) \{$.*?^\}$|^\w+\(\) \{.*\}$", scripts.batch, re.MULTILINE | re.DOTALL)
    script = "\n".join([*functions, "st_handshake= st_terminated=", f"finish {code}"])
    program = folder / "scontrol"
    program.write_text(scontrol or f"#!/bin/bash\nprintf '{CONFIG.format(listed, held)}'\n")
    program.chmod(0o755)
    env = {"PATH": f"{folder}:{os.defpath}:/usr/bin:/bin"}
    done = subprocess.run(["/bin/bash", "-c", script], env=env, capture_output=True, text=True, timeout=30)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("code", "listed", "held", "wanted"),
    [
        (42, "42", "(null)", 1),
        (42, "(null)", "40-43,99", 1),
        (42, "1", "42,2-5", 6),
        (42, "41,43", "420", 42),
        (1, "(null)", "(null)", 1),
        (0, "0,42", "(null)", 0),
        (137, "NONE", "", 137),
        (42, "$(touch x),42", "*", 42),
    ],
)
def test_a_listed_code_is_not_used(tmp_path: Path, code: int, listed: str, held: str, wanted: int) -> None:
    got, said = finish(tmp_path, code, listed, held)
    assert got == wanted
    assert ("this cluster requeues" in said) == (code != wanted)
    assert not (tmp_path / "x").exists()


def test_without_an_answer_the_code_stays(tmp_path: Path) -> None:
    assert finish(tmp_path, 42, "", "", scontrol="#!/bin/bash\necho no >&2; exit 1\n") == (42, "")
