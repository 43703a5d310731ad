"""Reading and following files that other processes write, and making their text safe for a terminal."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.logs.follow import FileFollower, LineJoiner, find_tail, for_terminal, last_redraw, read_lines


def _drain(follower: FileFollower) -> tuple[bytes, list[str]]:
    pieces = list(follower.poll())
    return b"".join(piece.data for piece in pieces), [piece.notice for piece in pieces if piece.notice]


def test_a_file_that_appears_later_and_grows_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = FileFollower(path)
    assert _drain(follower) == (b"", [])
    path.write_bytes(b"one\n")
    assert _drain(follower) == (b"one\n", [])
    with path.open("ab") as stream:
        stream.write(b"two\nthr")
    assert _drain(follower) == (b"two\nthr", [])
    assert _drain(follower) == (b"", [])


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old 1\n")
    follower = FileFollower(path)
    assert _drain(follower)[0] == b"old 1\n"
    with path.open("ab") as stream:
        path.rename(tmp_path / "log.1")
        stream.write(b"old 2\n")
    path.write_bytes(b"new, and longer than the old one was\n")
    data, notices = _drain(follower)
    assert data == b"old 2\nnew, and longer than the old one was\n"
    assert len(notices) == 1


def test_a_truncated_file_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a long first line\n")
    follower = FileFollower(path)
    _drain(follower)
    os.truncate(path, 0)
    with path.open("ab") as stream:
        stream.write(b"anew\n")
    data, notices = _drain(follower)
    assert data == b"anew\n"
    assert "truncated" in notices[0]


def test_a_file_that_is_deleted_loses_nothing_that_was_written_before(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    follower = FileFollower(path)
    _drain(follower)
    with path.open("ab") as stream:
        stream.write(b"last words\n")
    path.unlink()
    assert _drain(follower)[0] == b"last words\n"
    assert _drain(follower)[0] == b""


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_joined_lines_are_the_bytes_that_were_fed(pieces: list[bytes]) -> None:
    joiner = LineJoiner()
    lines = [line for piece in pieces for line in joiner.feed(piece)]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert b"".join(lines) + joiner.flush() == b"".join(pieces)


@given(st.lists(st.sampled_from([b"", b"x", b"y" * 40]), max_size=12), st.booleans(), st.integers(0, 15))
def test_the_tail_begins_where_counting_lines_says(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes], closed: bool, wanted: int
) -> None:
    path = tmp_path_factory.mktemp("tail") / "log"
    path.write_bytes(b"\n".join(rows) + (b"\n" if closed and rows else b""))
    lines = list(read_lines(path))
    expected = b"".join(lines[len(lines) - wanted :] if wanted < len(lines) else lines)
    assert path.read_bytes()[find_tail(path, wanted) :] == expected


def test_the_tail_of_a_big_file_is_found_across_blocks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%09d\n" % number for number in range(100_000)))
    assert path.read_bytes()[find_tail(path, 20_000) :].split(b"\n")[0] == b"000080000"


HOSTILE = [
    b"\x1b]0;owned\x07",  # window title
    b"\x1b]52;c;cm0gLXJmIH4=\x07",  # clipboard
    b"\x1b[2J\x1b[H",  # clears the screen
    b"\x1b[6n",  # makes the terminal type an answer
    b"\x1bP$qm\x1b\\",
    b"\x1b[?1049h",
    b"\x1bc",  # reset
    b"\x07\x08\x0b\x00",
    "\x9b31m".encode(),  # 8-bit CSI in UTF-8
    b"\x9b31m",
    "a\u202egnp.exe".encode(),
    b"\x1b",
]


@pytest.mark.parametrize("evil", HOSTILE)
def test_a_hostile_line_cannot_steer_the_terminal(evil: bytes) -> None:
    shown = for_terminal(b"before " + evil + b" after\n").decode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
    assert shown.startswith("before ")
    assert shown.endswith("\n")


@given(st.binary(max_size=300))
def test_any_bytes_come_out_without_controls_but_colours(data: bytes) -> None:
    shown = for_terminal(data.replace(b"\n", b""))
    without_colours = re.sub(rb"\x1b\[[0-9;:]*m", b"", shown).decode()
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", without_colours)


def test_colours_stay_and_end_with_the_line() -> None:
    assert for_terminal(b"\x1b[1;31mred\n") == b"\x1b[1;31mred\x1b[0m\n"
    assert for_terminal(b"plain \xc3\xa4\n") == b"plain \xc3\xa4\n"


def test_a_progress_bar_shows_its_last_state() -> None:
    assert last_redraw(b"10%\r 50%\r100%\n") == b"100%\n"
    assert last_redraw(b"10%\r 50%\r") == b" 50%"
    assert last_redraw(b"windows\r\n") == b"windows\n"
