"""What runs teach each other about the cluster: a hint that may be damaged at any time."""

from __future__ import annotations

import json
from pathlib import Path

from slurmtrain.store.learnt import add_clean_up, read_clean_ups


def test_the_last_ones_are_kept_by_partition(tmp_path: Path) -> None:
    for number in range(20):
        add_clean_up(tmp_path, "c", "gpu", number, 1000.0 + number)
    add_clean_up(tmp_path, "c", "cpu", 3, 1000.0)
    assert read_clean_ups(tmp_path, "c", "gpu") == [float(n) for n in range(12, 20)]
    assert read_clean_ups(tmp_path, "c", "cpu") == [3.0]
    assert read_clean_ups(tmp_path, "d", "cpu") == []


def test_old_ones_are_forgotten(tmp_path: Path) -> None:
    add_clean_up(tmp_path, "c", "p", 50, 0.0)
    add_clean_up(tmp_path, "c", "p", 1, 90 * 86400.0)
    assert read_clean_ups(tmp_path, "c", "p") == [1.0]


def test_nonsense_and_hostile_names_do_no_harm(tmp_path: Path) -> None:
    add_clean_up(tmp_path, "../../x", "a/b", 2, 1.0)
    (path,) = (tmp_path / "learnt").iterdir()
    assert path.name == "clean-up.other.other.json"
    for text in ("{", "[]", '{"seconds": 3}', '{"seconds": ["a", true, 1e9, -1], "at": [1, 1, 1, 1]}'):
        path.write_text(text)
        assert read_clean_ups(tmp_path, "../../x", "a/b") == []
    path.write_text(json.dumps({"seconds": [5], "at": [1]}))
    assert read_clean_ups(tmp_path, "../../x", "a/b") == [5.0]
    path.unlink()
    path.mkdir()
    assert read_clean_ups(tmp_path, "../../x", "a/b") == []
    add_clean_up(tmp_path, "../../x", "a/b", 2, 1.0)
