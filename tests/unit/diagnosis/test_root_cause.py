"""The first cause, not the loudest line: cascades, several attempts, several ranks, several files."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from slurmtrain.core.diagnose import Diagnosis, diagnose
from slurmtrain.core.facts import Facts, RankExit
from slurmtrain.core.rules import RuleSet
from slurmtrain.errors import UsageError
from slurmtrain.logs.open_log import find_files, scan_folder, scan_source
from slurmtrain.logs.rank_names import rank_of_file, ranks_of_files
from slurmtrain.logs.scan import scan_bytes, scan_file

FAILED = Facts(state="FAILED", exit_code=1)
PEER = "[rank{0}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, remote process exited\n"


def read(text: str, rules: RuleSet, facts: Facts = FAILED) -> Diagnosis:
    return diagnose(facts, [scan_bytes(text.encode(), rules)])


def trace(rank: int, error: str) -> str:
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "train.py", line 9, in <module>\n[rank{rank}]:     step()\n[rank{rank}]: {error}\n'
    )


def test_one_rank_out_of_memory_and_a_thousand_victims(rules: RuleSet) -> None:
    log = "".join(PEER.format(rank) for rank in range(300))
    log += trace(611, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    log += "".join(PEER.format(rank) for rank in range(700, 1000))
    answer = read(log, rules)
    assert (answer.cause, answer.rank) == ("cuda_oom", 611)


def test_of_two_failures_the_first_counts(rules: RuleSet) -> None:
    answer = read(trace(2, "KeyError: 'label'") + trace(5, "ValueError: x"), rules)
    assert (answer.cause, answer.rank, answer.line) == ("python_exception", 2, 4)


def test_hardware_proof_beats_what_came_before(rules: RuleSet) -> None:
    log = trace(1, "RuntimeError: CUDA error: an illegal memory access was encountered")
    log += "[epilog] Aug 29 16:58:38 n14 kernel: NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.\n"
    answer = read(log, rules)
    assert (answer.cause, answer.node) == ("gpu_lost", "n14")
    assert answer.suspects[0].node == "n14"


def test_a_caught_error_is_no_cause(rules: RuleSet) -> None:
    log = trace(0, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    log += "".join(f"[rank0]: step {number} loss 2.0 lr 1e-4\n" for number in range(30))
    log += trace(0, "KeyError: 'x'")
    assert read(log, rules).cause == "python_exception"


def test_other_ranks_print_a_little_more_after_a_death(rules: RuleSet) -> None:
    """Without rank prefixes a death looks survived for a few lines; then the peers lose their connection."""
    log = "step 1 loss 2.0 lr 1e-4\nTraceback (most recent call last):\n  File \"t.py\", line 3\nKeyError: 'y'\n"
    log += "".join(f"step {number} loss 2.0 lr 1e-4\n" for number in range(2, 10))
    log += "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:1\n"
    assert read(log, rules).cause == "python_exception"


def test_a_batch_that_was_skipped_long_before_is_no_cause(rules: RuleSet) -> None:
    log = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    log += "".join(f"step {number} loss 2.0 lr 1e-4\n" for number in range(2, 60))
    log += "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:1\n"
    assert read(log, rules).cause == "peer_lost"


def test_our_marks_separate_attempts(rules: RuleSet) -> None:
    log = "slurmtrain: === attempt 0 launch 0 job 7 nodes 2 ===\n" + trace(
        0, "ModuleNotFoundError: No module named 'a'"
    )
    log += "slurmtrain: === attempt 1 launch 0 job 7 nodes 2 ===\n" + trace(3, "KeyError: 'x'")
    answer = read(log, rules)
    assert (answer.cause, answer.rank) == ("python_exception", 3)


def test_an_attempt_without_our_mark_ends_where_training_goes_on(rules: RuleSet) -> None:
    log = trace(0, "OSError: [Errno 28] No space left on device") + "srun: error: n1: task 0: Exited with exit code 1\n"
    log += "".join(f"step {number} loss 2.0 lr 1e-4\n" for number in range(40))
    log += trace(1, "KeyError: 'x'") + "srun: error: n1: task 1: Exited with exit code 1\n"
    assert read(log, rules).cause == "python_exception"


def test_a_requeue_line_and_a_new_start_separate_attempts(rules: RuleSet) -> None:
    log = (
        "step 5 loss 2.0\nslurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-01-01T10:00:00 DUE TO JOB REQUEUE ***\n"
    )
    log += "Resuming from checkpoint checkpoint-4500\n"
    log += "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n"
    assert read(log, rules).cause == "checkpoint_corrupt"


def test_the_rank_comes_from_label_and_local_rank(rules: RuleSet) -> None:
    log = (
        "0: [default1]:starting\n1: [default3]:starting\n1: [default3]:KeyError: 'x'\n0: [default0]:starting error: 0\n"
    )
    log = log.replace("starting\n", "CUDA error: none\n")
    assert read(log, rules).rank == 1 * 4 + 3


def test_a_label_of_a_launcher_is_no_rank(rules: RuleSet) -> None:
    log = "1: [rank9]: RuntimeError: NCCL communicator was aborted on rank 9.\n1: KeyError: 'x'\n"
    assert read(log, rules).rank is None


def test_the_launchers_summary_names_the_rank(rules: RuleSet) -> None:
    log = "Traceback (most recent call last):\n  File \"t.py\", line 1\nKeyError: 'x'\n"
    log += "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \nFailures:\n[1]:\n"
    log += "  rank      : 4 (local_rank: 0)\n  exitcode  : -15 (pid: 9)\nRoot Cause (first observed failure):\n"
    log += "  host      : n2\n  rank      : 6 (local_rank: 2)\n  exitcode  : 1 (pid: 11)\n"
    assert read(log, rules).rank == 6


def test_the_first_exit_names_the_rank_when_nothing_else_does(rules: RuleSet) -> None:
    facts = Facts(
        state="FAILED",
        exit_code=1,
        rank_exits=(RankExit(0, "n1", None, 9, 2), RankExit(5, "n2", 3, None, 1)),
    )
    answer = read("Traceback (most recent call last):\n  File \"t.py\", line 1\nKeyError: 'x'\n", rules, facts)
    assert (answer.rank, answer.node) == (5, "n2")


def test_the_lagging_rank_of_a_time_out(rules: RuleSet) -> None:
    line = (
        "[rank{0}]:[E1 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600060 ms\n"
    )
    log = "".join(line.format(rank, 64_088 if rank == 7 else 96_117) for rank in range(8))
    assert read(log, rules).rank == 7
    assert read("".join(line.format(rank, 5) for rank in range(8)), rules).rank is None


def test_files_of_ranks_are_ordered_by_time(tmp_path: Path, rules: RuleSet) -> None:
    (tmp_path / "rank_0.log").write_text("2025-01-01 10:00:05 ERROR RuntimeError: Connection reset by peer\n")
    (tmp_path / "rank_1.log").write_text("2025-01-01 10:00:07 ERROR ValueError: late\n")
    (tmp_path / "rank_2.log").write_text("2025-01-01 10:00:01 ERROR KeyError: 'first'\n")
    answer = diagnose(FAILED, scan_folder(tmp_path, rules))
    assert (answer.cause, answer.rank) == ("python_exception", 2)
    assert answer.file is not None
    assert answer.file.endswith("rank_2.log")


def test_torchelastic_error_files(tmp_path: Path, rules: RuleSet) -> None:
    for rank, (moment, message) in enumerate(
        ((1700000009, "RuntimeError: NCCL communicator was aborted"), (1700000001, "KeyError: 'x'"))
    ):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        body = {"message": {"message": message, "extraInfo": {"py_callstack": "Traceback", "timestamp": str(moment)}}}
        (folder / "error.json").write_text(json.dumps(body))
    answer = diagnose(FAILED, scan_folder(tmp_path, rules))
    assert (answer.cause, answer.rank) == ("python_exception", 1)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.log", 3),
        ("train-rank_12.err", 12),
        ("rank=4/out.txt", 4),
        ("attempt_0/5/stderr.log", 5),
        ("worker-2/out.txt", 2),
        ("1/rank.07/stdout", 7),
        ("4711_3_log.err", 3),
        ("nemo_log_globalrank-9_localrank-1.txt", 9),
        ("out.task5", 5),
        ("error-rank-6.json", 6),
        ("error-node-6.json", None),
        ("local_rank_3.log", None),
        ("train.log", None),
        ("slurm-4711.out", None),
        ("node-3.log", None),
    ],
)
def test_names_of_files_give_ranks(name: str, rank: int | None) -> None:
    assert rank_of_file(Path("/x") / name, Path("/x")) == rank


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["0.log", "1.log", "3.log"], [0, 1, 3]),
        (["out-1.err", "out-1.out", "out-2.err", "out-2.out"], [1, 1, 2, 2]),
        (["slurm-4711.out"], [None]),
        (["slurm-4711.out", "slurm-4712.out"], [None, None]),
        (["train-1.log"], [None]),
        (["n1-0.log", "n2-0.log"], [None, None]),
        (["2025-01-01.log", "2025-01-02.log"], [None, None]),
        (["node-0.log", "node-1.log"], [None, None]),
        (["train-17.log", "rank0.log"], [None, 0]),
    ],
)
def test_plain_numbers_are_ranks_only_where_they_look_like_it(names: list[str], ranks: list[int | None]) -> None:
    assert ranks_of_files([Path("/x") / name for name in names], Path("/x")) == ranks


def test_compressed_and_hidden_files(tmp_path: Path, rules: RuleSet) -> None:
    (tmp_path / "rank0.log.gz").write_bytes(gzip.compress(b"KeyError: 'x'\n"))
    (tmp_path / ".hidden").write_text("GPU 0 is lost\n")
    (tmp_path / "model.pt").write_bytes(b"GPU 0 is lost\n")
    assert [path.name for path in find_files(tmp_path)] == ["rank0.log.gz"]
    assert diagnose(FAILED, scan_folder(tmp_path, rules)).cause == "python_exception"


def test_a_range_of_an_appended_log(tmp_path: Path, rules: RuleSet) -> None:
    first, second = trace(0, "ModuleNotFoundError: No module named 'a'"), "step 1\n" + trace(2, "KeyError: 'x'")
    log = tmp_path / "log"
    log.write_text(first + second + "GPU 0 is lost\n")
    answer = diagnose(FAILED, [scan_file(log, rules, offset=len(first), end=len(first + second))])
    assert (answer.cause, answer.rank, answer.line) == ("python_exception", 2, 9)


def test_json_lines(rules: RuleSet) -> None:
    log = '{"level": "error", "msg": "Traceback (most recent call last):\\n  File \\"t.py\\"\\nKeyError: \'x\'"}\n'
    assert read(log, rules).cause == "python_exception"


def test_json_lines_tell_their_rank(rules: RuleSet) -> None:
    log = '{"ts": 1700000000, "rank": 11, "level": "error", "exc": "KeyError: \'x\'"}\n'
    answer = read(log, rules)
    assert (answer.cause, answer.rank) == ("python_exception", 11)


def test_the_earliest_of_torchelastics_error_files_counts(tmp_path: Path, rules: RuleSet) -> None:
    for rank, moment in enumerate((1700000009, 1700000001, 1700000005)):
        body = {"message": {"message": f"ValueError: {rank}", "extraInfo": {"timestamp": str(moment)}}}
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(body))
    assert diagnose(FAILED, scan_folder(tmp_path, rules)).rank == 1


def test_a_thousand_files_at_once(tmp_path: Path, rules: RuleSet) -> None:
    for rank in range(1000):
        error = "KeyError: 'x'" if rank == 613 else "RuntimeError: Connection reset by peer"
        (tmp_path / f"rank_{rank}.log").write_text(f"step 1 loss 2.0\n2025-01-01 10:00:01 {error}\n")
    started = time.process_time()
    answer = diagnose(FAILED, scan_folder(tmp_path, rules))
    assert (answer.cause, answer.rank) == ("python_exception", 613)
    assert time.process_time() - started < 10


def test_a_line_of_many_megabytes(rules: RuleSet) -> None:
    bar = b"".join(b"\r 10%%| step %d/9000 [00:10<10:00,  9.1it/s, error=0.1]" % number for number in range(90_000))
    data = b"start\n" + bar + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\nend\n"
    answer = diagnose(FAILED, [scan_bytes(data, rules)])
    assert (answer.cause, answer.line) == ("cuda_oom", 2)
    glued = b"start\n" + b"x" * 5_000_000 + b" CUDA out of memory. Tried to allocate 2 GiB " + b"y" * 5_000_000 + b"\n"
    answer = diagnose(FAILED, [scan_bytes(glued, rules)])
    assert (answer.cause, answer.line) == ("cuda_oom", 2)
    assert len(answer.evidence[0].text) < 420


def test_nothing_in_a_log_is_no_success(rules: RuleSet) -> None:
    for text in ("", "\n \n", "\0" * 5000):
        assert read(text, rules, Facts()).cause == "unknown"
        assert read(text, rules, Facts(state="COMPLETED", exit_code=0)).cause == "no_failure"
    assert read("hello\n", rules, Facts()).cause == "no_failure"


def test_a_device_is_no_log(rules: RuleSet) -> None:
    with pytest.raises(UsageError, match="device"):
        scan_source("/dev/zero", rules)


def test_a_torn_compressed_log_counts_as_far_as_it_goes(tmp_path: Path, rules: RuleSet) -> None:
    whole = gzip.compress(("KeyError: 'x'\n" + "".join(f"line {n}\n" for n in range(50_000))).encode())
    log = tmp_path / "log.gz"
    log.write_bytes(whole[: len(whole) // 2])
    found = scan_source(log, rules)
    assert 1_000 < found.lines < 50_000
    assert diagnose(FAILED, [found]).cause == "python_exception"
