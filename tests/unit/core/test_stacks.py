"""Who holds the others up, from real faulthandler output."""

from __future__ import annotations

import subprocess
import sys

from slurmtrain.core.stacks import find_odd_ranks, parse_stacks

ALLREDUCE = """\
Fatal Python error: Aborted

Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f2 (most recent call first):
  File "/opt/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/opt/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/me/train.py", line 88 in step
  File "/home/me/train.py", line 120 in <module>

Extension modules: numpy, torch._C""".splitlines()
LOADER = """\
Fatal Python error: Aborted

Current thread 0x00007f3 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 180 in get
  File "/home/me/data.py", line 31 in next_batch
  File "/home/me/train.py", line 80 in step""".splitlines()


def logged(stacks: dict[int, list[str]]) -> list[tuple[int, str]]:
    """Interleaved, as ranks print at the same time."""
    longest = max(map(len, stacks.values()))
    return [(rank, lines[at]) for at in range(longest) for rank, lines in stacks.items() if at < len(lines)]


def test_the_rank_that_is_not_in_the_collective() -> None:
    odd = find_odd_ranks(parse_stacks(logged({0: ALLREDUCE, 1: ALLREDUCE, 2: LOADER, 3: ALLREDUCE})), 4)
    assert odd is not None
    assert odd.ranks == (2,)
    assert str(odd.where) == "next_batch (data.py:31)"
    assert str(odd.others) == "step (train.py:88)"


def test_the_rank_that_printed_nothing() -> None:
    odd = find_odd_ranks(parse_stacks(logged({0: ALLREDUCE, 1: ALLREDUCE, 3: ALLREDUCE})), 4)
    assert odd is not None
    assert (odd.ranks, odd.where) == ((2,), None)


def test_another_collective_than_the_others() -> None:
    elsewhere = [line.replace("line 88 in step", "line 99 in evaluate") for line in ALLREDUCE]
    odd = find_odd_ranks(parse_stacks(logged({0: ALLREDUCE, 1: elsewhere, 2: ALLREDUCE})), 3)
    assert odd is not None
    assert (odd.ranks, str(odd.where)) == ((1,), "evaluate (train.py:99)")


def standing(*calls: str) -> list[str]:
    """Outermost first, as ``function:line``."""
    frames = [f'  File "/home/me/train.py", line {line} in {name}' for name, line in (c.split(":") for c in calls)]
    return ["Current thread 0x00007f3 (most recent call first):", *frames[::-1]]


IN_LIBRARY = '  File "/usr/lib/python3.13/pathlib/_local.py", line 293 in drive'


def test_ranks_that_wait_in_a_loop_of_their_own_stand_at_different_lines_of_it() -> None:
    """One polls, one has just begun to, two sleep: the fourth is where none of them is."""
    waits = [standing("<module>:55", "train:49", f"wait_for_others:{line}") for line in (19, 20, 20)]
    waits[0].insert(1, IN_LIBRARY)
    looks = standing("<module>:55", "train:49", "wait_for_others:21", "look:7")
    stands = standing("<module>:55", "train:40", "stand_in_a_lock:15")
    for stacks in ({0: waits[0], 1: waits[1], 2: stands, 3: waits[2]}, {0: looks, 1: waits[1], 2: stands, 3: waits[2]}):
        odd = find_odd_ranks(parse_stacks(logged(stacks)), 4)
        assert odd is not None
        assert (odd.ranks, str(odd.where)) == ((2,), "stand_in_a_lock (train.py:15)")
        assert str(odd.others) == "wait_for_others (train.py:20)"


def test_a_rank_that_goes_deeper_than_the_others() -> None:
    wait, deep = standing("<module>:9", "train:5"), standing("<module>:9", "train:5", "log_images:3")
    odd = find_odd_ranks(parse_stacks(logged({0: wait, 1: deep, 2: wait})), 3)
    assert odd is not None
    assert (odd.ranks, str(odd.where)) == ((1,), "log_images (train.py:3)")


def test_the_same_barrier_from_another_place() -> None:
    """All wait in a collective, and one of them in another one than the rest."""
    barrier = [*ALLREDUCE[:7], '  File "/home/me/train.py", line 7 in barrier', *ALLREDUCE[9:10]]
    elsewhere = [line.replace("line 120", "line 133") for line in barrier]
    odd = find_odd_ranks(parse_stacks(logged({0: barrier, 1: elsewhere, 2: barrier})), 3)
    assert odd is not None
    assert odd.ranks == (1,)


def test_nobody_stands_out_where_there_is_no_majority() -> None:
    lines = [standing("<module>:9", f"train:{line}") for line in (5, 6, 7)]
    assert find_odd_ranks(parse_stacks(logged(dict(enumerate(lines)))), 3) is None
    halves = [standing("<module>:9", f"{name}:5") for name in ("left", "left", "right", "right")]
    assert find_odd_ranks(parse_stacks(logged(dict(enumerate(halves)))), 4) is None


def test_all_alike_and_nothing_at_all() -> None:
    assert find_odd_ranks(parse_stacks(logged({0: ALLREDUCE, 1: ALLREDUCE})), 2) is None
    assert find_odd_ranks({}, 4) is None
    assert find_odd_ranks(parse_stacks(logged({0: LOADER, 1: ALLREDUCE, 2: ["x"]}))) is not None


def test_what_python_really_prints() -> None:
    code = "import os, signal, threading\ndef held(): os.kill(os.getpid(), signal.SIGABRT)\ndef loop(): held()\nloop()"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, timeout=60
    )
    (where,) = parse_stacks((5, line) for line in done.stderr.splitlines()).values()
    assert [frame.function for frame in where.frames] == ["held", "loop", "<module>"]
