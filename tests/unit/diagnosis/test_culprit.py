"""The rank that caused it, not one that reported it: summaries of several nodes, lagging, silent and killed ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.core.diagnose import Diagnosis, diagnose
from slurmtrain.core.facts import Facts, RankExit
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.open_log import scan_folder
from slurmtrain.logs.scan import scan_bytes

FAILED = Facts(state="FAILED", exit_code=1)
GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[10.0.0.3]:30118. This is typically caused by a remote worker crashing."
)


def read(text: str, rules: RuleSet, facts: Facts = FAILED) -> Diagnosis:
    return diagnose(facts, [scan_bytes(text.encode(), rules)])


def lost(*ranks: int) -> str:
    return "".join(f"[rank{rank}]: {GLOO}\n" for rank in ranks)


def failure(rank: int, local: int, code: int, at: str = "10:00:05", host: str = "n1", name: str = "") -> str:
    words = f"  ({name})" if name else ""
    return (
        f"[{local}]:\n  time      : 2025-03-21_{at}\n  host      : {host}\n  rank      : {rank} (local_rank: {local})\n"
        f"  exitcode  : {code} (pid: 80746){words}\n  error_file: <N/A>\n  traceback : Signal received by PID 80746\n"
    )


def summary(root: str, others: str = "  <NO_OTHER_FAILURES>\n", label: str = "") -> str:
    """torch/distributed/elastic/multiprocessing/errors/__init__.py, since 1.10."""
    text = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        + "=" * 60
        + "\ntrain.py FAILED\n"
        + "-" * 60
        + "\nFailures:\n"
        + others
        + "-" * 60
        + "\nRoot Cause (first observed failure):\n"
        + root
        + "=" * 60
        + "\n"
    )
    return "".join(f"{label}{line}\n" for line in text.splitlines()) if label else text


def test_the_launchers_first_failure_wins_over_its_victims(rules: RuleSet) -> None:
    log = lost(0, 1, 2) + summary(failure(3, 1, -9, name="SIGKILL"), failure(2, 0, -15, name="SIGTERM"))
    answer = read(log, rules)
    assert (answer.cause, answer.rank, answer.node) == ("peer_lost", 3, "n1")
    assert "SIGKILL" in " ".join(answer.notes)
    assert answer.suspects == ()


def test_of_several_nodes_summaries_the_earliest_wins(rules: RuleSet) -> None:
    first = summary(failure(0, 0, -15, "10:00:09", "n1", "SIGTERM"), label="0: ")
    second = summary(failure(6, 2, 1, "10:00:04", "n2"), failure(5, 1, -15, "10:00:04", "n2"), label="1: ")
    third = summary(failure(9, 1, 1, "10:00:07", "n3"), label="2: ")
    for parts in ((first, second, third), (third, first, second), (second, third, first)):
        answer = read(lost(0, 1, 9) + "".join(parts), rules)
        assert (answer.cause, answer.rank, answer.node) == ("peer_lost", 6, "n2")


def test_in_the_same_second_a_kill_comes_before_an_error_and_an_abort(rules: RuleSet) -> None:
    parts = [
        summary(failure(1, 1, -6, "10:00:04", "n1", "SIGABRT"), label="0: "),
        summary(failure(6, 2, -9, "10:00:05", "n2", "SIGKILL"), label="1: "),
        summary(failure(9, 1, 1, "10:00:05", "n3"), label="2: "),
    ]
    assert read(lost(0, 1, 9) + "".join(parts), rules).rank == 6


def test_the_layout_of_torch_1_9(rules: RuleSet) -> None:
    """The root cause came first there, and no host was printed."""
    log = lost(0) + (
        "**************************************************\n            train.py FAILED            \n"
        + "=" * 40
        + "\nRoot Cause:\n[0]:\n  time: 2021-07-20_12:02:00\n  rank: 2 (local_rank: 2)\n  exitcode: 1 (pid: 94)\n"
        '  error_file: <N/A>\n  msg: "Process failed with exitcode 1"\n' + "=" * 40 + "\nOther Failures:\n"
        "[1]:\n  time: 2021-07-20_12:02:00\n  rank: 3 (local_rank: 3)\n  exitcode: -15 (pid: 95)\n"
    )
    assert read(log, rules).rank == 2


def test_a_summary_that_names_a_victim_blames_nobody_else_wrongly(rules: RuleSet) -> None:
    """All but one complain, and the summary's root is one of those that complain: the silent one is the suspect."""
    log = "world_size: 4\n" + lost(0, 1, 2) + summary(failure(1, 1, 1))
    answer = read(log, rules)
    assert (answer.cause, answer.rank) == ("peer_lost", 3)
    assert "only one of 4" in answer.notes[0]


def watchdog(rank: int, seq: int = 9, group: str = "") -> str:
    group = f"[PG ID {group} Rank {rank}] " if group else f"[Rank {rank}] "
    return (
        f"[rank{rank}]:[E321 02:07:08.1 ProcessGroupNCCL.cpp:607] {group}Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600060 "
        "milliseconds before timing out.\n"
    )


def status(rank: int, enqueued: int, done: int) -> str:
    return (
        f"[rank{rank}]:[E321 02:07:08.2 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        f"Exception (either an error or timeout) detected by watchdog at work: {done + 1}, last enqueued NCCL "
        f"work: {enqueued}, last completed NCCL work: {done}.\n"
    )


def test_the_silent_rank_of_a_time_out(rules: RuleSet) -> None:
    log = "NCCL INFO comm 0x55d rank 0 nranks 8 cudaDev 0\n" + "".join(watchdog(rank) for rank in range(8) if rank != 5)
    answer = read(log, rules)
    assert (answer.cause, answer.rank) == ("nccl_timeout", 5)
    assert read("".join(watchdog(rank) for rank in (0, 1, 2)), rules).rank is None
    assert read("nranks 8\n" + "".join(watchdog(rank) for rank in (0, 1, 2, 3)), rules).rank is None


def test_the_silent_file_of_a_folder(tmp_path: Path, rules: RuleSet) -> None:
    for rank in range(4):
        text = "step 1 loss 2.0\n" if rank == 2 else "step 1 loss 2.0\n" + watchdog(rank)
        (tmp_path / f"rank_{rank}.log").write_text(text)
    assert diagnose(FAILED, scan_folder(tmp_path, rules)).rank == 2


def test_the_rank_whose_work_lags_behind(rules: RuleSet) -> None:
    log = "".join(watchdog(rank, 9) + status(rank, 12 if rank != 3 else 8, 8) for rank in range(4))
    answer = read(log, rules)
    assert answer.rank == 3
    assert "8 of 12" in answer.notes[0]


def test_process_groups_are_compared_with_themselves_only(rules: RuleSet) -> None:
    tensor, data = "1 PG GUID 1(tp)", "2 PG GUID 5(dp)"
    same = "".join(watchdog(rank, 900 if rank < 2 else 40, tensor if rank < 2 else data) for rank in range(4))
    assert read(same, rules).rank is None
    assert read(same.replace("SeqNum=40", "SeqNum=39", 1), rules).rank == 2


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 5000 ms\n", 1),
        ("RuntimeError: Rank 2 failed to pass monitoredBarrier in 1800000 ms\n", 2),
        (
            watchdog(0)
            + "[rank0]: To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
            "[rank0]: \t   - [3] finished collective #4, but didn't join collective #5 (count from 1)\n",
            3,
        ),
        (
            "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait::0."
            " # of tasks that reached the barrier: 1/2. The first task at the barrier: "
            "/job:jax_worker/replica:0/task:0. Some timed out task names:\n/job:jax_worker/replica:0/task:1\n",
            1,
        ),
    ],
)
def test_programs_that_name_the_missing_rank(text: str, rank: int, rules: RuleSet) -> None:
    answer = read(text, rules)
    assert answer.family == "comm"
    assert answer.rank == rank


@pytest.mark.parametrize("from_facts", [True, False])
def test_a_task_that_left_first_without_a_word(rules: RuleSet, from_facts: bool) -> None:
    text = "srun: error: n2: task 2: Exited with exit code 7\n" + lost(3, 1)
    text += "srun: error: n1: task 0: Terminated\nsrun: error: n2: task 3: Exited with exit code 1\n"
    exits = (RankExit(2, "n2", 7, None, 0), RankExit(3, "n2", 1, None, 1)) if from_facts else ()
    answer = read(text, rules, Facts(state="FAILED", exit_code=1, rank_exits=exits))
    assert (answer.cause, answer.rank, answer.node) == ("peer_lost", 2, "n2")
    assert "exit code 7" in " ".join(answer.notes)
    victims = text.replace("task 2: Exited with exit code 7", "task 3: Exited with exit code 1")
    assert read(victims, rules).rank == 3, "who complains first and ends first may still be a victim"
    unlabelled = text.replace("[rank3]: ", "").replace("[rank1]: ", "")
    assert read(unlabelled, rules).rank is None, "it may be the one that complained"


def test_a_task_that_was_killed_first(rules: RuleSet) -> None:
    exits = (RankExit(3, "n2", None, 9, 0), RankExit(0, "n1", 1, None, 1), RankExit(1, "n1", 1, None, 1))
    log = "0: " + GLOO + "\n1: " + GLOO + "\n"
    answer = read(log, rules, Facts(state="FAILED", exit_code=1, rank_exits=exits))
    assert (answer.cause, answer.rank, answer.node) == ("peer_lost", 3, "n2")
    text = "srun: error: n2: task 3: Killed\nsrun: error: n1: tasks 0-1: Exited with exit code 1\n"
    assert read(log + text, rules).rank == 3


def test_a_launchers_task_is_no_rank(rules: RuleSet) -> None:
    """With torchrun srun's task 1 is the second node: its number must not be taken for rank 1."""
    log = "0: [default0]:ok\n1: [default1]:KeyError: 'x' near nothing\n"
    facts = Facts(state="FAILED", exit_code=1, rank_exits=(RankExit(1, "n2", 1, None, 0),))
    tail = "0: [default0]:[rank0]: error\n1: [default1]:[rank3]: error: Killed\n"
    trace = "Traceback (most recent call last):\n  File \"t.py\", line 1\nKeyError: 'x'\n"
    assert read(trace + tail, rules, facts).rank is None
    answer = read(log.replace(" near nothing", ""), rules, facts)
    assert (answer.rank, answer.node) == (3, "n2")


def test_labels_of_components_are_no_ranks(rules: RuleSet) -> None:
    """srun --label of a heterogeneous step: P<component> <task>."""
    log = "P0 0: step 1\nP1 0: Traceback (most recent call last):\n"
    log += "P1 0:   File \"t.py\", line 1\nP1 0: KeyError: 'x'\n"
    log += "srun: error: n5: task 0: Exited with exit code 1\n"
    answer = read(log, rules)
    assert (answer.cause, answer.rank, answer.line) == ("python_exception", None, 4)
    assert read(log.replace("P1 0: KeyError", "P1 0: [rank7]: KeyError"), rules).rank == 7


def test_of_two_that_explain_each_other_the_first_stays(rules: RuleSet) -> None:
    """torchrun on two nodes: a rank aborts at its exit, then the other node's agent loses the rendezvous."""
    crash = "0: [default1]:terminate called without an active exception\n0: [default1]:Fatal Python error: Aborted\n"
    left = (
        "1: [W1129 17:45:48.1 TCPStore.cpp:347] [c10d] recvValueWithTimeout failed on SocketImpl(fd=3): Connection "
        "was likely closed.\n1: W1129 17:45:49.0 29583 torch/distributed/elastic/rendezvous/dynamic.py:1380] "
        "The node 'localhost_29583_0' has failed to shutdown the rendezvous '38_0_1' due to an error of type "
        "RendezvousConnectionError.\n"
    )
    answer = read(crash + left, rules)
    assert (answer.cause, answer.rank) == ("native_crash", 1)


@pytest.mark.parametrize("daemon", ["slurmstepd-n2", "slurmstepd"])
def test_the_daemon_of_a_node_speaks_through_its_first_rank_and_is_not_it(daemon: str, rules: RuleSet) -> None:
    """A step of two nodes with two ranks each under `srun --label`, Slurm 22.05: rank 3 was killed, rank 2 was not."""
    text = (
        "0: step 40/120 loss 2.0780\n"
        f"0: [rank0]: {GLOO}\n"
        f"2: {daemon}: error: Detected 1 oom-kill event(s) in StepId=6.1. Some of your processes may have been killed "
        "by the cgroup out-of-memory handler.\n"
        "srun: error: n2: task 3: Out Of Memory\n"
    )
    found = read(text, rules)
    assert (found.cause, found.rank, found.node) == ("host_oom", 3, "n2")
