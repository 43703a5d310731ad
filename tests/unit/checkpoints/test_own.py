"""Formats of a site's or a user's own: collected at submission, used in the child, never trusted too much."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest

from slurmtrain.checkpoints.apart import check_apart
from slurmtrain.checkpoints.collect_own import load_formats
from slurmtrain.checkpoints.find import choose
from slurmtrain.checkpoints.model import Health
from slurmtrain.checkpoints.own import OWN_FORMATS
from slurmtrain.core.spec import Checkpoint
from slurmtrain.errors import SpecError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs"))
from blocks import find_file


def kept(run: Path, **sources: str) -> Path:
    folder = run / "formats"
    folder.mkdir(parents=True)
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    path = run / OWN_FORMATS
    path.write_text(json.dumps(load_formats([folder])))
    return path


def save(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w") as archive:
        for name in names:
            archive.add(__file__, name)
    return path


def test_the_example_of_the_docs_tells_whole_from_broken(tmp_path: Path) -> None:
    own = kept(tmp_path, tarball=find_file("tarball.py"))
    whole = save(tmp_path / "step-1.tar", "weights", "DONE")
    assert check_apart(whole, own=own).health is Health.VALID
    assert check_apart(whole, own=own).format == "tarball"
    assert check_apart(whole).health is Health.UNKNOWN, "without it"
    cut = check_apart(save(tmp_path / "step-2.tar", "weights"), own=own)
    assert (cut.health, cut.detail) == (Health.INCOMPLETE, "step-2.tar has no DONE, which is written last")
    (tmp_path / "step-3.tar").write_bytes(b"x" * 5000)
    assert check_apart(tmp_path / "step-3.tar", own=own).health is Health.CORRUPT


def test_a_launch_resumes_from_what_it_lets_pass(tmp_path: Path) -> None:
    kept(tmp_path, tarball=find_file("tarball.py"))
    (tmp_path / "checkpoints").mkdir()
    save(tmp_path / "checkpoints" / "step-1.tar", "DONE")
    save(tmp_path / "checkpoints" / "step-2.tar", "weights")
    choice = choose(tmp_path, Checkpoint())
    assert choice.newest is not None
    assert choice.newest.path.name == "step-1.tar"


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError('oh')",
        "import os; os._exit(3)",
        "print('{}'); return 7",
        "1 / 0",
        "exit(0)",
        "bytearray(1 << 40)",
    ],
)
def test_a_format_that_fails_says_nothing_about_the_checkpoint(body: str, tmp_path: Path) -> None:
    own = kept(tmp_path, bad=f"def matches(path): return True\ndef check(path, deep):\n    {body}\n")
    found = check_apart(save(tmp_path / "step-1.tar", "x"), own=own)
    if "return 7" in body:
        assert (found.health, found.step) == (Health.VALID, 7)
    else:
        assert found.health is Health.UNREADABLE
        assert ("the format bad failed on it" in found.detail) is ("_exit" not in body)


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    own = kept(tmp_path, slow="def matches(path):\n    while True: pass\ndef check(path, deep): pass\n")
    assert check_apart(save(tmp_path / "step-1.tar", "x"), own=own, limit_s=3).health is Health.UNREADABLE


@pytest.mark.parametrize(
    "source", ["def matches(path): return (", "x = 1", "import nothing_of_this", "raise SystemExit"]
)
def test_a_format_that_does_not_load_is_told_at_submission(source: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"mine.py.*needs matches\(path\) and check\(path, deep\)"):
        kept(tmp_path, mine=source)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import os; os._exit(0)", "it ended its process with exit code 0"),
        ("import os; os.kill(os.getpid(), 9)", "it ended its process with signal 9"),
        ("while True: pass", "does not load within 2 s"),
        ("import os\nwhile True: os.write(1, b'x' * 99999)", "does not load within 2 s"),
        ("import os\nwhile True:\n    for fd in range(3, 9):\n        try: os.write(fd, b'x' * 99999)\n"
         "        except OSError: pass", "answers with more than 1 MiB"),
        ("bytearray(1 << 40)", "MemoryError"),
        ("raise ValueError('a\\nb' * 9999)", "ValueError: a ba b"),
    ],
)  # fmt: skip
def test_a_format_takes_no_submission_along(
    source: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurmtrain.checkpoints.apart.LOAD_S", 2.0)
    with pytest.raises(SpecError) as caught:
        kept(tmp_path, mine=source)
    assert told in str(caught.value)
    assert str(tmp_path / "formats" / "mine.py") in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_what_a_format_prints_is_no_part_of_what_submit_prints(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept(tmp_path, loud="print('hello'); import os; os.system('echo hello')\n" + find_file("tarball.py"))
    assert capfd.readouterr() == ("", "")
