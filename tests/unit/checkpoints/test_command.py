"""``slurmtrain checkpoints``: what the next launch would really resume from, what is kept, what was set aside."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from made_runs import MadeRun, make_run

from slurmtrain.agent.resume import choose_checkpoint, roll_back
from slurmtrain.checkpoints import find
from slurmtrain.checkpoints.model import Health, Verdict
from slurmtrain.checkpoints.pin import pin_newest
from slurmtrain.cli.checkpoints import command
from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, RunState
from slurmtrain.core.jobid import parse_job_id
from slurmtrain.core.spec import Checkpoint

TORCH = Path(__file__).resolve().parents[2] / "data" / "checkpoints" / "torch" / "step-000040.pt"


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return make_run(tmp_path)


def save(made: MadeRun, *steps: int, cut: tuple[int, ...] = ()) -> Path:
    folder = made.dir.path / "checkpoints"
    for step in steps:
        shutil.copy(TORCH, path := folder / f"step-{step:06d}.pt")
        if step in cut:
            os.truncate(path, 2000)
    return folder


def call(made: MadeRun, *words: str) -> Result:
    result = CliRunner().invoke(command, [made.dir.run_id, "--store", str(made.dir.path.parents[1]), *words])
    assert result.exception is None, result.exception
    return result


def show(made: MadeRun, *words: str) -> list[str]:
    return call(made, *words).stdout.splitlines()


def tell(made: MadeRun, *words: str) -> dict[str, Any]:
    return dict(json.loads(call(made, "--json", *words).stdout))


def marked(made: MadeRun) -> list[str]:
    return [line.split()[1] for line in show(made) if line.startswith("→")]


def assert_foretold(made: MadeRun, **options: Any) -> None:
    """What the command says is what the agent then does."""
    told, arrows = tell(made), marked(made)
    found = choose_checkpoint(made.dir, Checkpoint(**options))
    assert told["next"]["path"] == (str(found.path) if found else None)
    if found is not None and not told["next"]["comes_back"]:
        assert arrows == [found.path.name]
        assert [row["path"] for row in told["checkpoints"] if row["resume"]] == [str(found.path)]


def test_the_first_lines_say_where_they_lie_and_what_is_next_and_why(made: MadeRun) -> None:
    folder = save(made, 10, 20, 30, cut=(20, 30))
    first, second, *_ = show(made)
    assert first == f"Checkpoints in {folder}"
    assert second.startswith("Next launch: step-000010.pt (step 40, ")
    assert second.endswith("old): the newest that is whole; 2 newer ones are not")
    assert tell(made)["folder"] == str(folder)
    assert_foretold(made)


def test_where_the_check_is_in_doubt_the_arrow_follows_the_launch(made: MadeRun) -> None:
    save(made, 10, 20, 30, cut=(10, 20, 30))
    assert marked(made) == ["step-000030.pt"]
    text = "\n".join(show(made))
    assert "Next launch: step-000030.pt" in text
    assert "none of the 3 newest passes the check" in text
    assert tell(made)["next"]["doubtful"] is True
    assert_foretold(made)


def test_two_broken_ones_mean_from_the_beginning(made: MadeRun) -> None:
    save(made, 10, 20, cut=(10, 20))
    assert marked(made) == []
    assert show(made)[1] == "Next launch: from the beginning: none of the 2 checkpoints is whole"
    assert_foretold(made)


def test_no_checkpoint_at_all_is_an_answer_with_the_folder(made: MadeRun) -> None:
    first, second, *rest = show(made)
    assert first == f"Checkpoints in {made.dir.path / 'checkpoints'}"
    assert (second, rest) == ("Next launch: from the beginning: there is no checkpoint", [])
    assert tell(made)["next"] == {
        "path": None, "step": None, "why": "there is no checkpoint", "doubtful": False, "comes_back": False,
    }  # fmt: skip


def test_a_switched_off_check_is_said(tmp_path: Path) -> None:
    made = make_run(tmp_path, checkpoint=Checkpoint(check=False))
    save(made, 10, 20, cut=(20,))
    assert show(made)[1].endswith("the newest by its name, for checkpoint.check is off")
    assert_foretold(made, check=False)


def test_what_is_kept_and_would_come_back(made: MadeRun) -> None:
    folder = save(made, 10, 20)
    pin_newest(made.dir.path, Checkpoint())
    assert any(line.startswith("Kept from deletion: step-000020.pt, in ") for line in show(made))
    assert [row["kept"] for row in tell(made)["checkpoints"]] == [True, False]
    (folder / "step-000010.pt").unlink()
    (folder / "step-000020.pt").unlink()
    assert "step-000020.pt" in show(made)[1]
    assert "comes back" in show(made)[1]
    assert tell(made)["next"]["comes_back"] is True
    assert_foretold(made)


def test_for_another_run_nothing_comes_back(made: MadeRun) -> None:
    """``restart`` makes a new run, and what this one keeps is not looked for by it."""
    folder = save(made, 20)
    pin_newest(made.dir.path, Checkpoint())
    (folder / "step-000020.pt").unlink()
    made.attempt(parse_job_id("7"))
    made.decided(0, Action.STOP, RunState.FAILED)
    assert show(made)[1] == "`slurmtrain restart`: from the beginning: there is no checkpoint"


def test_a_finished_run_has_no_next_launch(made: MadeRun) -> None:
    save(made, 20)
    made.attempt(parse_job_id("7"))
    made.decided(0, Action.COMPLETE, RunState.COMPLETED)
    assert show(made)[1].startswith("`slurmtrain restart --resume`: step-000020.pt")


def test_those_set_aside_are_listed_with_the_reason(made: MadeRun) -> None:
    folder = save(made, 10, 20, 30, cut=(30,))

    def note(path: Path, why: str) -> None:
        made.write(ev.CheckpointSetAside(at=time.time(), who="agent", attempt=0, path=str(path), why=why))

    found = choose_checkpoint(made.dir, Checkpoint(), note)
    assert found is not None
    roll_back(made.dir, Checkpoint(), found.path, "nan_loss", note)
    text = show(made)
    at = next(i for i, line in enumerate(text) if line.startswith("Set aside"))
    assert text[at] == f"Set aside, in {folder}.set-aside (never deleted by slurmtrain):"
    listed = " ".join(text[at + 1 :])
    assert "step-000030.pt has no end" in listed
    assert "step-000020.pt" in listed
    assert "nan_loss" in listed
    rows = {row["name"]: row for row in tell(made)["set_aside"]}
    assert set(rows) == {"step-000020.pt", "step-000030.pt"}
    assert rows["step-000030.pt"]["size_bytes"] == 2000
    assert all(Path(row["path"]).exists() for row in rows.values())


def test_sizes_and_ages(made: MadeRun) -> None:
    folder = save(made, 10)
    os.utime(folder / "step-000010.pt", (time.time() - 7500, time.time() - 7500))
    big = folder / "step-000020"
    big.mkdir()
    (big / "weights.bin").write_bytes(b"x" * 3_000_000)
    text = "\n".join(show(made))
    assert "2 h 5 min" in text
    assert "2.9 MiB" in text
    assert tell(made)["checkpoints"][0]["size_bytes"] == 3_000_000


def test_hostile_names_are_quoted_and_the_columns_bounded(made: MadeRun) -> None:
    folder = save(made, 10)
    (folder / "step-000010.pt").rename(folder / os.fsdecode(b"step-\x1b[31m\n\xff 10.pt"))
    long = folder / f"{'very-' * 40}step-20.pt"
    shutil.copy(TORCH, long)
    text = call(made).stdout
    assert "\x1b" not in text
    lines = text.splitlines()
    assert max(len(line) for line in lines[2:]) < 160, "the table"
    assert r"'step-\x1b[31m\n\xff 10.pt'" in text
    assert "step-20.pt" in text, "of a long name its end: there stands the step"
    assert any(row["path"] == str(long) for row in tell(made)["checkpoints"])


def test_a_folder_that_is_a_link_to_itself_or_full_of_others_is_an_answer(made: MadeRun) -> None:
    folder = made.dir.path / "checkpoints"
    aside = folder.with_name("checkpoints.set-aside")
    aside.mkdir()
    for number in range(300):
        (aside / f"step-{number}.pt-{1796030552000 + number}").touch()
    assert "step-299.pt" in "\n".join(show(made))
    assert len(tell(made)["set_aside"]) == 200, "the newest"
    folder.rmdir()
    folder.symlink_to("checkpoints")
    made.write(ev.CheckpointSetAside(at=1, who="agent", attempt=0, path="/nothing\0here/x.set-aside/y-1", why="?"))
    assert show(made)[1] == "Next launch: from the beginning: there is no checkpoint"


def test_a_deep_check_that_finds_more_than_a_launch_would_is_said(
    made: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(made, 10, 20)
    data = bytearray(TORCH.read_bytes())
    data[len(data) // 3] ^= 4
    (folder / "step-000020.pt").write_bytes(data)
    monkeypatch.setattr(find, "check_apart", lambda *_a, **_k: Verdict(Health.VALID, "torch"))  # as for a huge file
    result = call(made, "--deep")
    assert marked(made) == ["step-000020.pt"]
    assert "a launch would take step-000020.pt all the same" in result.stderr


def test_a_newest_one_that_may_still_be_written_is_no_alarm(made: MadeRun) -> None:
    save(made, 10, 20, cut=(20,))
    made.write(
        ev.AttemptStarted(at=1, who="gate", attempt=0, job_id="1", restart_count=0, host="n", nodes="n1"),
        ev.LaunchStarted(at=2, who="agent", attempt=0, launch=0),
    )
    assert any("perhaps it is being written now" in line for line in show(made) if "step-000020" in line)
