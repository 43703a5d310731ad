"""How fast is the scan? One big log, read by slurmtrain, ripgrep, grep and gpualert, in one run.

    python benchmarks/classify.py [--mib 1024] [--dir DIR]

All count the same patterns: lines that hold one of the rules' literals. slurmtrain also gives lines, ranks and causes.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurmtrain.core.diagnose import Facts, diagnose
from slurmtrain.logs.fastscan import find_finder
from slurmtrain.logs.matcher import matcher_of
from slurmtrain.logs.scan import scan_file, scan_log
from slurmtrain.plugins.rulepacks import load_rules

FAILURE = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "train.py", line 100, in <module>\n'
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)


def write_log(path: Path, mib: int) -> None:
    """Progress lines of eight ranks with a survived warning now and then, and a failure at the end."""
    source = random.Random(1)
    block = "".join(
        f"[rank{step % 8}]: 2025-01-01 10:00:{step % 60:02d} INFO step {step} loss {source.random() * 3:.4f} "
        f"grad_norm {source.random():.3f} lr 1.0e-4 tokens/s 41200\n"
        for step in range(8000)
    )
    block += "wandb: Network error (ReadTimeout), entering retry loop.\n"
    data = block.encode()
    with path.open("wb") as file:
        for _ in range((mib << 20) // len(data) + 1):
            file.write(data)
        file.write(FAILURE.encode())


def timed(name: str, size: int, call: object) -> None:
    started = time.perf_counter()
    result = call()  # type: ignore[operator]
    seconds = time.perf_counter() - started
    print(f"{name:<34} {seconds:8.2f} s  {size / seconds / 2**20:8.0f} MiB/s  {result}", flush=True)


def tool(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    return (result.stdout.strip() or result.stderr.strip())[-60:].replace("\n", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--dir", type=Path, default=None)
    given = parser.parse_args()
    rules = load_rules()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        log = Path(folder) / "train.log"
        write_log(log, given.mib)
        size = log.stat().st_size
        words = Path(folder) / "words"
        words.write_text("\n".join(matcher_of(rules).words) + "\n")
        print(f"{size / 2**20:.0f} MiB, {len(matcher_of(rules).words)} literals, {os.cpu_count()} cores")
        log.read_bytes() if size < 2 << 30 else None

        def answer(finder: object) -> str:
            with log.open("rb") as stream:
                found = scan_log(stream, rules, name="log", finder=finder)  # type: ignore[arg-type]
            result = diagnose(Facts(state="FAILED", exit_code=1), [found])
            return f"{result.cause}, rank {result.rank}, line {result.line} of {found.lines}"

        finder = find_finder(rules)
        if finder is not None:
            timed("slurmtrain with hyperscan", size, lambda: answer(finder))
        if given.mib <= 256:
            timed("slurmtrain with re", size, lambda: answer(None))
        else:
            head = Path(folder) / "head"
            with log.open("rb") as source:
                head.write_bytes(source.read(64 << 20))
            timed("slurmtrain with re (64 MiB)", 64 << 20, lambda: f"{scan_file(head, rules).lines} lines")
        if shutil.which("rg"):
            timed(
                "ripgrep -j1 -c -i -F",
                size,
                lambda: tool("rg", "-j1", "-c", "-i", "-F", "-f", str(words), str(log)),
            )
        timed("grep -c -i -F", size, lambda: tool("grep", "-c", "-i", "-F", "-f", str(words), str(log)))
        if shutil.which("gpualert"):
            timed("gpualert", size, lambda: tool("gpualert", "classify", str(log)))


if __name__ == "__main__":
    main()
