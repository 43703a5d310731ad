"""The live tests on native clusters, side by side: most of them in lanes of one, those that stop daemons or want a
cluster for themselves on a second, and those that want Slurm's own timers on a third.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from minislurm import packages
from minislurm.beside import Beside
from minislurm.settings import SCRIPT

if TYPE_CHECKING:
    from minislurm.testrun import TestRun

LANES, NODES = 4, 12


class NativeTests:
    """One run of them. ``then`` is called when those that run alone are over, from another thread."""

    def __init__(self, run: TestRun, then: Callable[[], None] | None) -> None:
        self._run = run
        self._then = then

    def work(self) -> bool:
        """Whether all passed. Raises ``MiniSlurmError``."""
        tools = self._run.debian()
        packages.ensure({"gdb": "gdb", "git": "git"})  # back traces of core files, and what a work directory is under
        names = {kind: ["--name", self._run.name(kind)] for kind in ("test", "alone", "slow")}
        try:
            return self._up(names) and self._all(tools)
        finally:
            for name in names.values():
                self._run.command(SCRIPT, "down", *name)

    def _up(self, names: dict[str, list[str]]) -> bool:
        """Three clusters, and one installation of slurmtrain for them."""
        run, options, size = self._run, ["--native", "--fresh", "--extra", "demo"], ["--nodes", str(NODES)]
        if not run.command(SCRIPT, "up", *names["test"], *options, *size, "--lanes", str(LANES)):
            return False
        for kind, more in (("alone", size), ("slow", ["--timers", "default"])):
            if not run.command(SCRIPT, "up", *names[kind], *options, *more, "--no-venv"):
                return False
            shared = run.directory(kind) / "venv"
            if not shared.exists():
                shared.symlink_to(run.directory("test") / "venv")
            if not run.command(SCRIPT, "env", *names[kind]):
                return False
        return True

    def _all(self, tools: Path) -> bool:
        """What runs beside is shown at the end; what failed there gets its second chance then."""
        lanes = [*live("not default_timers and not whole_cluster"), f"-n{LANES}", "--maxschedchunk=1", "--durations=15"]
        loners = self._run.pytest_command(
            tools, *live("not default_timers and whole_cluster"), "--durations=15", cache="alone"
        )
        patient = self._run.pytest_command(tools, *live("default_timers"), cache="slow")
        with self._begin("slow", patient) as slow, self._begin("alone", loners) as alone:
            if self._then is not None:
                alone.then(self._then)
            good = self._run.pytest(tools, *lanes, extra_env=self._run.live_env("test"))
            print("--- those that stop daemons, or want a cluster for themselves, run meanwhile ---", flush=True)
            good = self._finish("alone", loners, alone) and good
            print("--- a cluster with Slurm's own timers, run meanwhile ---", flush=True)
            return self._finish("slow", patient, slow) and good

    def _begin(self, kind: str, argv: list[str]) -> Beside:
        return self._run.begin(f"live-{kind}", argv, self._run.live_env(kind))

    def _finish(self, kind: str, argv: list[str], beside: Beside) -> bool:
        code, lines = beside.finish()
        return self._run.judge(argv, code, lines[-1] if lines else "", self._run.live_env(kind))


def live(selection: str) -> list[str]:
    """Arguments for pytest."""
    return ["tests/live", "-m", selection, "-v"]
