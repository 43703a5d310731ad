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
