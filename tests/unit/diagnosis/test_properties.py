"""What must not change a cause: prefixes, colours, noise around, other ranks between, an earlier attempt before."""

from __future__ import annotations

import random
import re
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_bytes
from slurmtrain.plugins.rulepacks import load_rules

from .conftest import Case, corpus_cases

pytestmark = pytest.mark.one_python

CASES = [case for case in corpus_cases() if case.label["root_cause"] != "no_failure"]
LAUNCHER = re.compile(r"^(?:srun|slurmstepd|sbatch|salloc)")
# The neighbourhood of several ranks is what these labels are about: prefixing every line with one rank changes them.
ABOUT_RANKS = {"072-port-nemo-all-ranks", "178-hang-stall-different-tensors", "081-commcfg-loopback"}
HEALTHY = "".join(f"epoch 1 step {step} loss {3 - step / 500:.3f} lr 0.0003 tokens/s 41200\n" for step in range(1, 200))
EARLIER = (
    "slurmtrain: === attempt 0 launch 0 job 7 nodes 2 ===\n"
    "step 1 loss 3.2\nTraceback (most recent call last):\n"
    '  File "train.py", line 3, in <module>\n    x\n'
    "ModuleNotFoundError: No module named 'apex'\n"
    "srun: error: n1: task 0: Exited with exit code 1\n"
    "slurmtrain: === attempt 1 launch 0 job 7 nodes 2 ===\n"
)
slow_ok = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@cache
def _rules() -> RuleSet:
    return load_rules()


def cause_of(case: Case, text: str) -> str:
    return diagnose(case.facts(), [scan_bytes(text.encode(), _rules())]).cause


def read(case: Case) -> str:
    return case.log.read_text("utf-8", "replace")


def prefixed(text: str, style: str) -> str:
    """Every line of the program with a prefix; what Slurm itself prints has none."""
    return "\n".join(line if LAUNCHER.match(line) or not line else style.format(line=line) for line in text.split("\n"))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
class TestEveryCase:
    def test_healthy_output_before(self, case: Case) -> None:
        assert cause_of(case, HEALTHY + read(case)) == case.label["root_cause"]

    def test_an_earlier_attempt_before(self, case: Case) -> None:
        assert cause_of(case, EARLIER + read(case)) == case.label["root_cause"]

    def test_colours(self, case: Case) -> None:
        coloured = "\n".join(f"\x1b[1;31m{line}\x1b[0m" for line in read(case).split("\n"))
        assert cause_of(case, coloured) == case.label["root_cause"]

    def test_windows_line_ends(self, case: Case) -> None:
        assert cause_of(case, read(case).replace("\n", "\r\n")) == case.label["root_cause"]

    @pytest.mark.parametrize("style", ["3: {line}", "[rank3]: {line}", "[1,3]<stderr>:{line}", "[default3]:{line}"])
    def test_a_rank_before_each_line(self, case: Case, style: str) -> None:
        if case.name in ABOUT_RANKS:
            pytest.skip("the label is about several ranks")
        assert cause_of(case, prefixed(read(case), style)) == case.label["root_cause"]

    def test_a_time_stamp_before_each_line(self, case: Case) -> None:
        assert cause_of(case, prefixed(read(case), "2025-03-03 10:11:12,345 {line}")) == case.label["root_cause"]

    def test_another_ranks_progress_between(self, case: Case) -> None:
        if case.name in ABOUT_RANKS:
            pytest.skip("the label is about several ranks")
        lines = prefixed(read(case), "0: {line}").split("\n")
        mixed = []
        for number, line in enumerate(lines):
            mixed.append(line)
            if number % 7 == 3 and number < len(lines) - 4:
                mixed.append(f"1: [rank 1] saved {number} files to the cache")
        assert cause_of(case, "\n".join(mixed)) == case.label["root_cause"]

    def test_the_tail_cut_after_the_evidence(self, case: Case) -> None:
        evidence = case.label["evidence_line"]
        if not evidence:
            pytest.skip("Slurm's facts alone decide")
        if case.name in ABOUT_RANKS:
            pytest.skip("the label is about what other ranks print")
        lines = read(case).split("\n")
        assert cause_of(case, "\n".join(lines[: max(evidence)]) + "\n") == case.label["root_cause"]


@slow_ok
@given(st.sampled_from(CASES), st.integers(0, 2**32), st.integers(1, 400))
def test_healthy_lines_of_any_length_before(case: Case, seed: int, count: int) -> None:
    source = random.Random(seed)
    noise = "".join(
        f"iter {number} | loss {source.random() * 4:.4f} | {'x' * source.randrange(200)} | lr 1e-4\n"
        for number in range(count)
    )
    assert cause_of(case, noise + read(case)) == case.label["root_cause"]


@slow_ok
@given(st.sampled_from(CASES), st.integers(1, 5000))
def test_reading_in_pieces_of_any_size_gives_the_same(case: Case, size: int) -> None:
    from slurmtrain.logs.matcher import matcher_of
    from slurmtrain.logs.scan import Scanner

    data = case.log.read_bytes()
    scanner = Scanner(matcher_of(_rules()), "log")
    for start in range(0, len(data), size):
        scanner.feed(data[start : start + size])
    pieces = scanner.finish()
    whole = scan_bytes(data, _rules())
    assert [(item.rule, item.line, item.rank) for item in pieces.findings] == [
        (item.rule, item.line, item.rank) for item in whole.findings
    ]
    assert pieces.lines == whole.lines
