"""What a launch resumes from. Nobody of the run writes checkpoints while it is chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say
from slurmtrain.checkpoints.cut_saves import finish_cut_saves
from slurmtrain.checkpoints.find import Choice, Found, checkpoint_dir, choose, find_all, set_aside, set_aside_broken
from slurmtrain.checkpoints.model import BROKEN, Health
from slurmtrain.checkpoints.pin import bring_back, is_older_than_kept, unpin
from slurmtrain.checkpoints.pointers import mend
from slurmtrain.core.decision import Decision
from slurmtrain.core.policy import rolled_back_in_vain
from slurmtrain.core.spec import Checkpoint
from slurmtrain.errors import StoreError
from slurmtrain.store.rundir import RunDir

Note = Callable[[Path, str], None]  # writes down where one that was set aside lies now, and why


def choose_checkpoint(run: RunDir, checkpoint: Checkpoint, note: Note = lambda _path, _why: None) -> Found | None:
    """The newest checkpoint that is whole; broken ones that are newer are set aside, and that is said.

    ``ops.checkpoints`` foretells it.
    """
    for path in finish_cut_saves(checkpoint_dir(run.path, checkpoint), checkpoint.pattern):
        say(f"{path.name} was whole, and its save was killed before it had its name; it has it now")
    choice = choose(run.path, checkpoint)
    if choice.left_out:
        say(f"warning: {choice.left_out}")
    _say_gone(choice)
    if is_older_than_kept(run.path, checkpoint, choice) and (back := _bring_back(run, checkpoint)):
        say(f"{', '.join(back[:3])}, which had been kept from deletion, is there again")
        choice = choose(run.path, checkpoint)
        for found, verdict in choice.passed_over:
            if verdict.health in BROKEN and found.path.name in back:
                unpin(run.path, checkpoint, found.path.name)
    if choice.doubtful and choice.verdict is not None:
        say(f"no checkpoint passes the check ({choice.verdict.detail}); the newest is used all the same")
        return choice.newest
    for path, why in set_aside_broken(choice):
        say(f"{why}: set aside as {path.parent.name}/{path.name}")
        note(path, why)
    if choice.newest is not None and choice.verdict is not None:
        at = choice.newest.path
        if choice.verdict.detail:
            say(f"{at.name}: {choice.verdict.detail}")
        if name := mend(at.parent, choice.verdict.format, at.name):
            say(f"{name} named a checkpoint that is not there; it names {at.name} now")
    return choice.newest


def _say_gone(choice: Choice) -> None:
    for _, verdict in choice.passed_over:
        if verdict.health is Health.GONE:
            say(f"{verdict.detail}; it is passed over")


def _bring_back(run: RunDir, checkpoint: Checkpoint) -> list[str]:
    try:
        return bring_back(run.path, checkpoint)
    except StoreError as exc:
        say(str(exc))
        return []


def roll_back_after(
    decision: Decision, loaded: Path | None, run: RunDir, checkpoint: Checkpoint, record: Record
) -> None:
    """What the decision wants of it, if anything."""
    if decision.rollback:
        again = rolled_back_in_vain(record.read_run())
        roll_back(run, checkpoint, loaded, decision.cause, record.set_aside, again=again)


def roll_back(
    run: RunDir,
    checkpoint: Checkpoint,
    loaded: Path | None,
    cause: str,
    note: Note = lambda _path, _why: None,
    *,
    again: bool = False,
) -> None:
    """Set aside what a failed launch must not be continued from, so that an older checkpoint is used.

    ``loaded`` is what it resumed from: that one if it could not be read. After a loss that became no number the newest
    one, which the launch may have written itself; and where it came no further than the one before (``again``) all
    down to ``loaded``.
    """
    known = find_all(run.path, checkpoint)
    at = next((number for number, found in enumerate(known) if found.path == loaded), None)
    first, end = 0, 1
    if cause == "checkpoint_corrupt":
        first, end = (at, at + 1) if at is not None else (0, 0)
    elif again and at is not None:
        end = at + 1
    before = known[end] if end < len(known) else None
    for found in known[first:end]:
        unpin(run.path, checkpoint, found.path.name)
        try:
            aside = set_aside(found.path, before)
        except StoreError as exc:
            say(str(exc))
            continue
        say(f"set aside {aside.name}; the checkpoint before it is used")
        whose = "resumed from it" if found.path == loaded else "wrote it"
        note(aside, f"a launch that {whose} failed: {cause}")
