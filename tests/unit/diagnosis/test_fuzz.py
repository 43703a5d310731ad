"""Random bytes and mutated logs: no crash, no growth of memory, no super-linear time."""

from __future__ import annotations

import io
import random
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmtrain.core.causes import CAUSES
from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.facts import Facts, RankExit
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_bytes, scan_log
from slurmtrain.plugins.rulepacks import load_rules

from .conftest import corpus_cases

RULES = load_rules()
LOGS = [case.log.read_bytes() for case in corpus_cases()]
STATES = ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "CANCELLED by 1000", "OUT_OF_MEMORY", "NODE_FAIL", "", "NEW"]
quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

facts = st.builds(
    Facts,
    state=st.none() | st.sampled_from(STATES),
    exit_code=st.none() | st.integers(-1, 300),
    signal=st.none() | st.integers(0, 130),
    derived_exit_code=st.none() | st.integers(0, 255),
    elapsed_s=st.none() | st.floats(0, 1e6),
    time_limit_s=st.none() | st.floats(0, 1e6),
    last_output_age_s=st.none() | st.floats(0, 1e6),
    nnodes=st.none() | st.integers(1, 4000),
    oom_kill_events=st.none() | st.integers(0, 3),
    stop_sent=st.none() | st.sampled_from(["time_limit", "preempted", "user", "hang", "x"]),
    rank_exits=st.lists(
        st.builds(RankExit, st.none() | st.integers(0, 9), st.none() | st.text(max_size=5), st.none(), st.none()),
        max_size=3,
    ).map(tuple),
)


def check(data: bytes, given_facts: Facts) -> None:
    answer = diagnose(given_facts, [scan_bytes(data, RULES)])
    assert answer.cause in CAUSES
    assert 0 < answer.confidence < 1
    assert all(len(line.text) <= 410 and line.text.isprintable() for line in answer.evidence)
    if answer.line is not None:
        assert 1 <= answer.line <= data.count(b"\n") + 1


@quick
@given(st.binary(max_size=3000), facts)
def test_random_bytes(data: bytes, given_facts: Facts) -> None:
    check(data, given_facts)


@quick
@given(st.sampled_from(LOGS), st.integers(0, 2**32), facts)
def test_mutated_logs(data: bytes, seed: int, given_facts: Facts) -> None:
    source = random.Random(seed)
    mutated = bytearray(data)
    for _ in range(source.randrange(1, 40)):
        at = source.randrange(len(mutated) + 1)
        kind = source.randrange(4)
        if kind == 0:
            del mutated[at : at + source.randrange(60)]
        elif kind == 1:
            mutated[at:at] = source.randbytes(source.randrange(20))
        elif kind == 2:
            mutated[at:at] = mutated[max(0, at - 80) : at]
        else:
            mutated[at:at] = source.choice([b"\r", b"\x1b[31m", b"\x00", b"\n\n", b"\xff\xfe", b"\x1b]0;title\x07"])
    check(bytes(mutated), given_facts)


HOSTILE = {
    "one letter": b"a",
    "error without end": b"error ",
    "exceptions": b"RuntimeError: ",
    "dots": b"a.b",
    "paths": b"/x",
    "quotes": b"'\"",
    "newlines": b"\n",
    "returns": b"step 1 loss 2 \r",
    "escapes": b"\x1b[0m",
    "torn escapes": b"\x1b[",
    "tracebacks": b"Traceback (most recent call last):\n    x\nValueError: y\n",
    "nan": b"loss nan\n",
    "ranks": b"[rank1]: CUDA out of memory. Tried to allocate 1\n",
    "json": b'{"message": "\\\\nRuntimeError: x\\"',
    "brackets": b"[[[[((((",
    "slurm": b"srun: error: n1: task 1: Exited with exit code 1\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_is_linear_on_hostile_text(name: str) -> None:
    """Four times the text takes at most about four times as long."""

    def seconds(size: int) -> float:
        data = HOSTILE[name] * (size // len(HOSTILE[name]))
        started = time.process_time()
        scan_bytes(data, RULES)
        return time.process_time() - started

    seconds(20_000)
    small = min(seconds(100_000) for _ in range(3))
    large = min(seconds(400_000) for _ in range(2))
    assert large < 12 * small + 0.2
    assert large < 6.0


class _Endless(io.RawIOBase):
    """A log of any size that is never in memory."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, size: int = -1) -> bytes:
        return next(self._pieces, b"")


@pytest.mark.one_python
@pytest.mark.parametrize("kind", ["one line", "lines", "ranks", "errors"])
def test_memory_is_bounded(kind: str) -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(24):
            if kind == "one line":
                yield b"x error: " * 30_000
            elif kind == "lines":
                yield b"step 1 loss 2.0 lr 1e-4\n" * 12_000
            elif kind == "ranks":
                yield b"".join(
                    b"[rank%d]: RuntimeError: CUDA error: unknown error\n" % (number * 5_000 + at)
                    for at in range(5_000)
                )
            else:
                yield b"".join(b"ValueError: bad value %d\n" % (number * 3_000 + at) for at in range(3_000))

    scan_bytes(b"warm up\n", RULES)
    tracemalloc.start()
    try:
        findings = scan_log(_Endless(pieces()), RULES, name="log")  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60 << 20
    assert len(findings.findings) <= 130_000


def test_a_frozen_rule_set_gives_the_same() -> None:
    frozen = RuleSet.from_json(RULES.to_json())
    assert frozen.rules == RULES.rules
    for data in LOGS[:20]:
        assert [(item.rule, item.line) for item in scan_bytes(data, frozen).findings] == [
            (item.rule, item.line) for item in scan_bytes(data, RULES).findings
        ]
