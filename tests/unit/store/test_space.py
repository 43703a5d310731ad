"""How much room there is: the file system's, and what a quota leaves."""

from __future__ import annotations

from pathlib import Path

from slurmtrain.ops.space import Space, look_at_space, parse_quota, warn_of_space

GIB = 1 << 30
QUOTA = """Disk quotas for user ann (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
fs1:/home  1024000* 1000000 1048576 604800 900 1000 1200 0
"""


def test_a_store_is_looked_at_also_before_it_is_there(tmp_path: Path) -> None:
    space = look_at_space(tmp_path / "a" / "b")
    assert space is not None
    assert 0 < space.free <= space.total


def test_a_warning_before_and_a_clear_word_when_it_is_full() -> None:
    store = Path("/s")
    assert warn_of_space(store, None) == ""
    assert warn_of_space(store, Space(21 * GIB, 1000 * GIB, 10**6)) == ""
    assert "nearly full (19456 MiB left)" in warn_of_space(store, Space(19 * GIB, 1000 * GIB, 10**6))
    assert "nearly full (500 files left)" in warn_of_space(store, Space(500 * GIB, 1000 * GIB, 500))
    assert warn_of_space(store, Space(500 * GIB, 1000 * GIB, None)) == ""
    assert "is full (0 MiB left): trainings go on" in warn_of_space(store, Space(0, GIB))
    assert "is full (3 files left)" in warn_of_space(store, Space(500 * GIB, 1000 * GIB, 3))


def test_quota_is_read_as_quota_prints_it() -> None:
    space = parse_quota(QUOTA)
    assert space is not None
    assert (space.free, space.files) == ((1048576 - 1024000) * 1024, 300)
    assert "your quota on /s is nearly full" in warn_of_space(Path("/s"), space)
    assert parse_quota("Disk quotas for user ann (uid 1000): none\n") is None
    assert parse_quota("fs1:/home  10 0 0 0 900 0 0 0\n") is None
    assert parse_quota("x" * 10_000) is None
