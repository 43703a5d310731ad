"""A scene on this machine, and the bundled collectors run for real with stand-ins for what needs hardware."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurmtrain.evidence.collector import Collector, read_collector
from slurmtrain.evidence.manifest import Taking
from slurmtrain.evidence.scene import Scene
from slurmtrain.evidence.take import take_scene

ROOT = Path(__file__).parents[3]
FAKES = Path(__file__).parent / "fake_tools"
DATA = ROOT / "tests" / "data" / "tools"

Collect = Callable[..., tuple[Taking, Path]]


def bundled_collector(name: str) -> Collector:
    (path,) = (ROOT / "plugins" / "collectors").glob(f"*-{name}.py")
    return read_collector(path, "bundled")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stand-ins before the rest of PATH; ``NAME.mode`` in it says how one misbehaves."""
    folder = tmp_path / "tools"
    shutil.copytree(FAKES, folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DATA", str(DATA))
    return folder


@pytest.fixture
def collect(tmp_path: Path) -> Collect:
    """Run one bundled collector in its child process: what the manifest says of it, and its folder."""
    run = tmp_path / "store" / "runs" / "r"
    (run / "attempts" / "000" / "launches" / "0").mkdir(parents=True)
    base = Scene(
        out=tmp_path, node="n1", ending="failed", run_dir=run, job_id="7", nodes="n1", work_dir=tmp_path,
        checkpoint_dir=run / "checkpoints", environ={"PATH": os.environ["PATH"]},
    )  # fmt: skip

    def run_it(
        name: str, *, time_limit_s: float = 0.0, edit: tuple[str, str] = ("", ""), **values: object
    ) -> tuple[Taking, Path]:
        collector = bundled_collector(name)
        if time_limit_s:
            collector = replace(collector, time_limit_s=time_limit_s)
        if edit[0]:
            assert edit[0] in collector.source
            collector = replace(collector, source=collector.source.replace(*edit))
        taken = take_scene([collector], replace(base, **values), 60.0)  # type: ignore[arg-type]
        (taking,) = taken.takings
        return taking, taken.folder / collector.name

    return run_it
