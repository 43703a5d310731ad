"""The user's cache: what it gives back was made for just this key, and whatever is wrong with it costs time only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurmtrain.store.cache import remember, user_cache_dir

KEY = b"\x01" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".cache" / "slurmtrain"


def ask(folder: Path | None, data: bytes = b"made", key: bytes = KEY, *, lasting: bool = True) -> tuple[bytes, bool]:
    """What the cache gives, and whether it had to be made."""
    made: list[bytes] = []

    def make() -> tuple[bytes, bool]:
        made.append(data)
        return data, lasting

    return remember(folder, "agent", key, make), bool(made)


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def test_made_once_for_each_key(folder: Path) -> None:
    assert ask(folder) == (b"made", True)
    assert ask(folder, b"other") == (b"made", False)
    assert ask(folder, b"other", b"\x02" * 32) == (b"other", True)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_must_not_last_is_made_each_time(folder: Path) -> None:
    assert ask(folder, lasting=False) == (b"made", True)
    assert ask(folder, b"later") == (b"later", True)


def test_without_a_home_it_is_made_each_time() -> None:
    assert ask(None) == (b"made", True)
    assert user_cache_dir({}) is None
    assert user_cache_dir({"HOME": "relative", "XDG_CACHE_HOME": "also/relative"}) is None
    assert user_cache_dir({"HOME": "/h"}) == Path("/h/.cache/slurmtrain")
    assert user_cache_dir({"HOME": "/h", "XDG_CACHE_HOME": "/x"}) == Path("/x/slurmtrain")


@pytest.mark.parametrize("wrong", ["flipped", "cut", "empty", "longer", "swapped"])
def test_a_damaged_entry_is_made_again(folder: Path, wrong: str) -> None:
    ask(folder, b"a" * 1000)
    ask(folder, b"b" * 1000, b"\x02" * 32)
    path, other = entries(folder)
    good = path.read_bytes()
    path.write_bytes(
        {
            "flipped": good[:500] + bytes([good[500] ^ 1]) + good[501:],
            "cut": good[:500],
            "empty": b"",
            "longer": good + b"x",
            "swapped": other.read_bytes(),
        }[wrong]
    )
    assert ask(folder, b"again") == (b"again", True)
    assert ask(folder, b"no") == (b"again", False)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_no_file_is_as_if_it_were_not_there(folder: Path, tmp_path: Path, kind: str) -> None:
    ask(folder)
    (path,) = entries(folder)
    if kind == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.unlink()
        path.mkdir() if kind == "folder" else os.mkfifo(path)
    assert ask(folder, b"again") == (b"again", True)


def test_what_others_may_write_is_not_read(folder: Path) -> None:
    ask(folder)
    (path,) = entries(folder)
    path.chmod(0o666)
    assert ask(folder, b"again") == (b"again", True)
    folder.chmod(0o777)
    assert ask(folder, b"third") == (b"third", True)
    assert ask(folder, b"fourth") == (b"fourth", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
@pytest.mark.parametrize("place", [".", "..", "../.."])
def test_nothing_is_written_into_somebody_elses_folder(folder: Path, place: str) -> None:
    """Root with the HOME of the user who called sudo would leave files there that the user cannot replace."""
    home = folder.parent.parent
    if place != "../..":
        (folder / place).resolve().mkdir(parents=True)
    os.chown((folder / place).resolve(), 12345, 12345)
    assert ask(folder) == (b"made", True)
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_somebody_elses_file_is_not_read(folder: Path) -> None:
    ask(folder)
    (path,) = entries(folder)
    os.chown(path, 12345, 12345)
    assert ask(folder, b"again") == (b"again", True)


def test_a_full_disk_only_costs_time(folder: Path) -> None:
    program = f"""
import resource, signal, sys
from pathlib import Path
from slurmtrain.store.cache import remember
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
data = remember(Path({str(folder)!r}), "agent", {KEY!r}, lambda: (b"x" * 5000, True))
sys.exit(0 if data == b"x" * 5000 else 1)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
    assert entries(folder) == []


def test_many_at_once_and_kills_leave_only_whole_entries(folder: Path) -> None:
    program = f"""
from pathlib import Path
from slurmtrain.store.cache import remember
for turn in range(40):
    key = bytes([turn % 4]) * 32
    assert remember(Path({str(folder)!r}), "agent", key, lambda: (key * 40000, True)) == key * 40000
    for path in Path({str(folder)!r}).glob(f"agent-{{key.hex()}}"):
        path.unlink(missing_ok=True)
"""
    children = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(4)]
    children[0].kill()
    results = [(child.wait(timeout=120), child.communicate()[1]) for child in children]
    assert [code for code, _ in results[1:]] == [0, 0, 0], results


def test_old_entries_and_what_killed_ones_left_go_away(folder: Path) -> None:
    ask(folder)
    left, fresh = folder / ".agent-1.aa.tmp", folder / ".agent-2.bb.tmp"
    left.touch()
    fresh.touch()
    os.utime(left, (0, 0))
    (folder / "rules-1").touch()
    for number in range(30):
        ask(folder, key=bytes([number]) * 32)
    assert len(list(folder.glob("agent-*"))) == 8
    assert (folder / "rules-1").exists()
    assert (left.exists(), fresh.exists()) == (False, True)
