"""For the tests: put the programs where the researcher's jobs can run them, and read what they left."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = (
    "callbacks.py",
    "trainer.py",
    "errors.py",
    "ddp.py",
    "ddp_hangs.py",
    "double.py",
    "formats.py",
    "progress.py",
    "straggler.py",
    "frameworks.py",
    "unreliable.sh",
)
SEED = "0" * 16


def place_programs(folder: Path) -> Path:
    """Copy the programs below ``folder`` (the checkout may be unreadable for others); the new folder.

    Each at once as a whole: others may run them, and copy them, at the same time.
    """
    target, owner = folder / "programs", folder.stat()
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".programs-") as aside:
        for name in PROGRAMS:
            copy = Path(shutil.copy(HERE / name, aside))
            os.chown(copy, owner.st_uid, owner.st_gid)
            copy.chmod(0o755)
            copy.replace(target / name)
    os.chown(target, owner.st_uid, owner.st_gid)
    target.chmod(0o755)
    return target


def read_records(workdir: Path, event: str | None = None) -> list[dict[str, Any]]:
    """What the ranks of ``trainer.py`` wrote down, oldest first."""
    path = workdir / "record.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if event is None or row["event"] == event]


def read_newest_checkpoint(folder: Path) -> dict[str, Any]:
    """Content of the newest checkpoint of ``trainer.py``; fails where there is none."""
    found = sorted(folder.glob("step-*.json"))
    assert found, f"no checkpoint in {folder}"
    state: dict[str, Any] = json.loads(found[-1].read_text(encoding="utf-8"))
    return state


def expected_chain(steps: int) -> str:
    """What the checkpoint of a training that did each step once, in order, holds."""
    state = SEED
    for _ in range(steps):
        state = hashlib.sha256(state.encode()).hexdigest()[:16]
    return state


def assert_whole(folder: Path, steps: int) -> dict[str, Any]:
    """The newest checkpoint is that of ``steps`` steps, none lost, none done anew; its content."""
    state = read_newest_checkpoint(folder)
    assert state["step"] == steps, state
    assert state["chain"] == expected_chain(steps), f"steps were lost or repeated: {state}"
    return state
