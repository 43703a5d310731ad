"""The process that checks: limits that it inherits, its death, and what it prints say nothing about a checkpoint."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

from slurmtrain.checkpoints import apart
from slurmtrain.checkpoints.apart import check_apart
from slurmtrain.checkpoints.model import Health
from slurmtrain.checkpoints.own import OWN_FORMATS

DATA = Path(__file__).resolve().parents[2] / "data" / "checkpoints"
TORCH = DATA / "torch" / "step-000040.pt"
ROOT = Path(apart.__file__).parents[2]


def test_a_lower_limit_of_memory_does_not_make_a_whole_checkpoint_look_broken() -> None:
    """Slurm hands the limits of the submitting shell on, and sets one itself (VSizeFactor)."""
    code = (
        "import resource, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from slurmtrain.checkpoints.apart import check_apart\n"
        "print(check_apart(Path(sys.argv[2])).health.value)"
    )

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        os.setresuid(65534, 65534, 65534) if os.geteuid() == 0 else None

    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", code, str(ROOT), str(TORCH)],
        capture_output=True, text=True, preexec_fn=lower, timeout=60,
    )  # fmt: skip
    if "Permission denied" in done.stderr or "No module named" in done.stderr:
        pytest.skip("another user cannot read this source tree")
    assert done.stdout == "valid\n", done.stderr


@pytest.mark.parametrize("child", ["import os; os.kill(os.getpid(), 9)", "raise ImportError('the store is gone')", ""])
def test_a_check_that_dies_says_nothing(child: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without memory, a job that is being ended, an archive that cannot be read: all checkpoints would go."""
    monkeypatch.setattr(apart, "_CHILD", child)
    assert check_apart(TORCH).health is Health.UNREADABLE


def test_what_a_format_prints_or_leaves_running_stays_away_from_the_agent(tmp_path: Path) -> None:
    body = (
        "import os, subprocess, sys, time\n"
        "def matches(path): return True\n"
        "def check(path, deep):\n"
        "    os.write(1, b'x' * 1000); subprocess.run(['echo', 'flood']); print('{}')\n"
        f"    child = subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(600 if path.name == 'hangs' else 0)\n"
    )
    own = tmp_path / OWN_FORMATS
    own.write_text(json.dumps({"loud": body}))
    for name in ("quick", "hangs"):
        (tmp_path / name).write_text("x")
        began = time.monotonic()
        verdict = check_apart(tmp_path / name, own=own, limit_s=5)
        assert verdict.health is (Health.VALID if name == "quick" else Health.UNREADABLE)
        pid = int((tmp_path / "pid").read_text())
        if name == "quick":
            assert time.monotonic() - began < 5, "a process that it left does not hold the agent up"
        deadline = time.monotonic() + 20
        while _runs(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _runs(pid), "what a check started is ended with it"


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
