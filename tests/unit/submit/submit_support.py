"""A store, a job, and an ``sbatch`` that answers as a test wants: Slurm's own texts, through the real client."""

from __future__ import annotations

import stat
import sys
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from slurmtrain.config.resolve import Request, resolve
from slurmtrain.config.settings import Settings
from slurmtrain.hosts.local import LocalHost
from slurmtrain.ops.array import AcceptedArray, PreparedArray, prepare_array, submit_array
from slurmtrain.ops.prepare import Extensions, Prepared, build_run_id, prepare
from slurmtrain.ops.submit import Accepted, submit_run
from slurmtrain.slurm.cli_client import CliSlurmClient

# Answers with the lines of $T/answers in turn ("<exit code> <text>"), and writes down how it was called.
SBATCH = f"""#!{sys.executable}
import json, os, sys
folder = os.environ["T"]
script = next(a for a in sys.argv[1:] if not a.startswith("-"))
with open(folder + "/calls", "a") as file:
    seen = {{"argv": sys.argv[1:], "env": dict(os.environ), "script": open(script).read(), "cwd": os.getcwd()}}
    file.write(json.dumps(seen) + "\\n")
answers = open(folder + "/answers").read().splitlines()
code, _, text = answers[0].partition(" ")
open(folder + "/answers", "w").write("\\n".join(answers[1:] or answers))
(sys.stdout if code == "0" else sys.stderr).write(text + "\\n")
sys.exit(int(code))
"""
SINFO = "#!/bin/bash\nprintf 'n1|idle|batch|(null)|none\\nn2|idle|urgent|(null)|none\\n'\n"


@dataclass
class Desk:
    """Where a test submits."""

    folder: Path
    store: Path
    told: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    def answers(self, *lines: str) -> None:
        (self.folder / "answers").write_text("\n".join(lines))

    def slurm(self) -> CliSlurmClient:
        env = {"PATH": str(self.folder / "bin"), "T": str(self.folder), "HOME": str(self.folder)}
        return CliSlurmClient(LocalHost(), environ=env)

    def prepare(self, *sets: str, command: tuple[str, ...] = ("bash", "x")) -> Prepared:
        resolved = resolve(Request(None, sets, {}, command), Settings(), {"PATH": "/bin"}, self.folder)
        now = datetime.now(timezone.utc)
        return prepare(resolved, self.store / "runs" / build_run_id(resolved.spec.name, now), now, Extensions())

    def submit(self, prepared: Prepared) -> Accepted:
        return submit_run(prepared, self.slurm(), name="train", tell=self.told.append, sleep=self.slept.append)

    def prepare_array(self, *sets: str) -> PreparedArray:
        resolved = resolve(Request(None, sets, {}, ("bash", "x")), Settings(), {"PATH": "/bin"}, self.folder)
        return prepare_array(resolved, self.store, datetime.now(timezone.utc), Extensions())

    def submit_array(self, prepared: PreparedArray) -> AcceptedArray:
        return submit_array(prepared, self.slurm(), tell=self.told.append, sleep=self.slept.append)

    def leftovers(self) -> list[str]:
        """Whatever is in the store, hidden files too."""
        return sorted(str(p.relative_to(self.store)) for p in self.store.rglob("*")) if self.store.exists() else []


def make_desk(tmp_path: Path) -> Desk:
    for name, text in (("sbatch", SBATCH), ("sinfo", SINFO)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    made = Desk(tmp_path, tmp_path / "store")
    made.answers("0 4711")
    return made
