"""The newest checkpoint is pinned before the scene where the next launch may rotate it away, else after the scene."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from slurmtrain.checkpoints.pin import PINNED
from slurmtrain.core.spec import Spec, spec_to_dict
from slurmtrain.evidence.collector import parse_collector
from slurmtrain.evidence.frozen import COLLECTORS, freeze_collectors
from slurmtrain.evidence.request import Request, carry_out
from slurmtrain.store.publish import to_json

SOURCE = """
from pathlib import Path

def collect(scene):
    folder = Path(scene.run_dir)
    scene.write("seen.txt", str((folder / "kept-checkpoint").exists()))
    (folder / "checkpoints" / "step-7.npz").unlink()
"""
HEAD = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n"


@pytest.mark.parametrize(("ending", "first"), [("failed", True), ("hung", True), ("ended", False)])
def test_when_it_is_pinned(ending: str, first: bool, tmp_path: Path) -> None:
    run = tmp_path / "store" / "runs" / "r"
    (run / "checkpoints").mkdir(parents=True)
    (run / "attempts" / "000" / "launches" / "0").mkdir(parents=True)
    (run / "plan.json").write_bytes(to_json({"run_id": "r", "spec": spec_to_dict(Spec(command=("true",)))}))
    (run / COLLECTORS).write_bytes(freeze_collectors([parse_collector("a.py", SOURCE, "test")]))
    with zipfile.ZipFile(run / "checkpoints" / "step-7.npz", "w") as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\x00\x76\x00" + HEAD + bytes(16))
    taken = carry_out(Request(run, "n1", ending, 0, 0, batch_host=True))
    assert (taken.folder / "a" / "seen.txt").read_text() == str(first)
    assert (run / PINNED / "step-7.npz").exists() is first
