"""Which runs failed alike: small files that may be missing, many, old or hostile."""

from __future__ import annotations

from pathlib import Path

from slurmtrain.core.breaker import Failing
from slurmtrain.store.breaker import forget_failing, note_failing, read_failing

HOUR = 3600.0


def test_first_and_last_time_of_each_run(tmp_path: Path) -> None:
    note_failing(tmp_path, "gpu_lost", "a", 100.0)
    note_failing(tmp_path, "gpu_lost", "a", 150.0)
    note_failing(tmp_path, "gpu_lost", "b", 120.0)
    note_failing(tmp_path, "node_fail", "c", 120.0)
    found = sorted(read_failing(tmp_path, "gpu_lost", 160.0), key=lambda f: f.run_id)
    assert found == [Failing("a", 100.0, 150.0), Failing("b", 120.0, 120.0)]
    forget_failing(tmp_path, "gpu_lost", "a")
    forget_failing(tmp_path, "gpu_lost", "a")
    assert [f.run_id for f in read_failing(tmp_path, "gpu_lost", 160.0)] == ["b"]


def test_old_ones_are_taken_away(tmp_path: Path) -> None:
    note_failing(tmp_path, "gpu_lost", "a", 100.0)
    assert read_failing(tmp_path, "gpu_lost", 100 + 7 * HOUR) == []
    assert list((tmp_path / "breaker" / "gpu_lost").iterdir()) == []
    note_failing(tmp_path, "gpu_lost", "a", 100.0)
    note_failing(tmp_path, "gpu_lost", "a", 100 + 7 * HOUR)
    assert read_failing(tmp_path, "gpu_lost", 100 + 7 * HOUR) == [Failing("a", 100 + 7 * HOUR, 100 + 7 * HOUR)]


def test_hostile_names_and_contents_do_no_harm(tmp_path: Path) -> None:
    for cause, run in (("../x", "a"), ("gpu_lost", "../../a"), ("gpu_lost", "A b"), ("", "a")):
        note_failing(tmp_path, cause, run, 100.0)
        assert read_failing(tmp_path, cause, 100.0) == []
    folder = tmp_path / "breaker" / "gpu_lost"
    folder.mkdir(parents=True)
    texts = ["{", "[]", '{"first": 1e300, "last": 5}', '{"first": true, "last": true}', "x" * 5000]
    for number, text in enumerate(texts):
        (folder / f"r{number}.json").write_text(text)
    (folder / "dir.json").mkdir()
    (folder / "link.json").symlink_to("/dev/zero")  # endless
    (folder / "keep.txt").write_text("a person's")
    assert read_failing(tmp_path, "gpu_lost", 100.0) == []
    assert (folder / "keep.txt").exists()
    folder.chmod(0o500)
    note_failing(tmp_path, "gpu_lost", "a", 100.0)
    folder.chmod(0o700)
