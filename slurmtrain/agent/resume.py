"""What a launch resumes from. Nobody of the run writes checkpoints while it is chosen."""

from __future__ import annotations

from pathlib import Path

from slurmtrain.agent.say import say
from slurmtrain.checkpoints.find import Found, choose, find_all, set_aside, set_aside_broken
from slurmtrain.checkpoints.pin import bring_back, unpin
from slurmtrain.core.spec import Checkpoint
from slurmtrain.errors import StoreError
from slurmtrain.store.rundir import RunDir


def choose_checkpoint(run: RunDir, checkpoint: Checkpoint) -> Found | None:
    """The newest checkpoint that is whole; broken ones that are newer are set aside, and that is said."""
    choice = choose(run.path, checkpoint)
    if choice.newest is None and (back := _bring_back(run, checkpoint)):
        say(f"no checkpoint is left in {checkpoint.dir}: {back}, which had been kept, is there again")
        choice = choose(run.path, checkpoint)
    if choice.doubtful and choice.verdict is not None:
        say(f"no checkpoint passes the check ({choice.verdict.detail}); the newest is used all the same")
        return choice.newest
    for path, why in set_aside_broken(choice):
        say(f"{why}: set aside as {path.name}")
    return choice.newest


def _bring_back(run: RunDir, checkpoint: Checkpoint) -> str:
    try:
        return ", ".join(bring_back(run.path, checkpoint)[:3])
    except StoreError as exc:
        say(str(exc))
        return ""


def roll_back(run: RunDir, checkpoint: Checkpoint, failed: Path) -> None:
    """Set aside the checkpoint that a launch failed with, so that the one before is used."""
    known = find_all(run.path, checkpoint)
    at = next((number for number, found in enumerate(known) if found.path == failed), None)
    before = known[at + 1] if at is not None and at + 1 < len(known) else None
    unpin(run.path, checkpoint, failed.name)
    try:
        say(f"set aside {set_aside(failed, before).name}; the checkpoint before it is used")
    except StoreError as exc:
        say(str(exc))
