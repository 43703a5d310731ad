"""Flight recorder dumps: real ones of torch 2.13 over gloo, in which rank 1 of 3 left out the fourth all_reduce."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmtrain.evidence.flight_recorder import find_missing, parse_dump, read_dump
from slurmtrain.evidence.manifest import Taking

Collect = Callable[..., tuple[Taking, Path]]
REAL = Path(__file__).parents[2] / "data" / "flight_recorder"


def dump(*calls: tuple[int, str, list[list[int]]], world: int = 4, group: str = "0") -> Any:
    entries = [
        {
            "process_group": (group, "default_pg"), "collective_seq_id": number, "profiling_name": f"nccl:{name}",
            "input_sizes": sizes, "state": "completed" if number < len(calls) else "started", "is_p2p": False,
            "frames": [{"filename": "/x/torch/distributed/c10d_logger.py", "line": 83, "name": "wrapper"},
                       {"filename": "/home/j/train.py", "line": 40 + number, "name": "step"}],
        }
        for number, name, sizes in calls
    ]  # fmt: skip
    return parse_dump({"entries": entries, "pg_config": {group: {"ranks": str(list(range(world)))}}})


def test_the_rank_that_missed_a_collective_is_named_from_real_dumps(collect: Collect, tmp_path: Path) -> None:
    launch = tmp_path / "store/runs/r/attempts/000/launches/0"
    for path in REAL.iterdir():
        shutil.copy(path, launch)
    taking, folder = collect("flight-recorder")
    assert taking.notes == (
        "rank 1 did not enter all_reduce 4 of the default process group, in which ranks 0, 2 wait (t.py:7)",
    )
    assert (
        "rank 0, group 0: entered 4, completed 3, last all_reduce [[4]] t.py:7" in (folder / "output.txt").read_text()
    )


def test_a_rank_without_a_dump_and_a_rank_that_called_something_else() -> None:
    usual = [(1, "all_reduce", [[8]]), (2, "all_reduce", [[16]])]
    dumps = {0: dump(*usual), 1: dump(usual[0], (2, "broadcast", [[1]])), 3: dump(*usual)}
    assert find_missing(dumps) == [
        "in collective 2 of the default process group rank 1 called broadcast [[1]] (train.py:42), "
        "the others all_reduce [[16]]",
        "rank 2 left no record: dead, or stuck outside of collectives",
    ]
    assert find_missing({0: dump(*usual, world=2), 1: dump(*usual, world=2)}) == []
    assert find_missing({}) == []


def test_pickles_that_would_run_something_run_nothing(collect: Collect, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/ran",)

    launch = tmp_path / "store/runs/r/attempts/000/launches/0"
    (launch / "flight-rank-0").write_bytes(pickle.dumps({"entries": [Evil()]}, protocol=2))
    (launch / "flight-rank-1").write_bytes(b"\x80\x02garbage")
    (launch / "flight-rank-2").symlink_to("/dev/zero")
    (launch / "flight-rank-x").write_bytes(b"no rank")
    taking, _ = collect("flight-recorder")
    assert taking.status == "taken"
    assert not (tmp_path / "ran").exists()
    assert any("flight-rank-1" in note for note in taking.notes)


@pytest.mark.parametrize(
    "value", [[], {}, {"entries": {}}, {"entries": [1, {"process_group": 3}], "pg_status": [], "pg_config": 7}]
)
def test_odd_contents_do_no_harm(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "flight-rank-0"
    path.write_bytes(pickle.dumps(value, protocol=2))
    if isinstance(value, dict) and isinstance(value.get("entries"), list):
        assert find_missing({0: read_dump(path)}) == []
    else:
        with pytest.raises(ValueError, match="it is no record of collectives"):
            read_dump(path)
