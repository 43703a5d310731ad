"""How fast is the diagnosis? One big log, read by slurmtrain, ripgrep, grep and gpualert, in one run.

    python benchmarks/classify.py [--mib 1024] [--dir DIR] [--gpualert PYTHON]

All count the same patterns: lines that hold one of the rules' literals. slurmtrain also gives lines, ranks and causes.
Then the output of 1,000 ranks: a folder with a file for each, and all of them interleaved in one file. Every program is
a process of its own; the table shows its CPU time beside ripgrep's, its time on the clock and its largest memory.
`--gpualert` is a Python in which gpualert (0.1, PyPI) is installed; it tries its patterns on the text as a whole.
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
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurmtrain.core.diagnose import Facts, diagnose
from slurmtrain.logs.fastscan import find_finder
from slurmtrain.logs.matcher import matcher_of
from slurmtrain.logs.open_log import scan_folder
from slurmtrain.logs.scan import scan_log
from slurmtrain.plugins.rulepacks import load_rules

RANKS = 1_000
FAILURE = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "train.py", line 100, in <module>\n'
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
GPUALERT = """
import sys
from gpualert.parse_errors import parse_errors
print(parse_errors(open(sys.argv[1], errors="replace").read(), "", 1).splitlines()[0])
"""


def progress(rank: int, step: int, source: random.Random) -> str:
    return (
        f"[rank{rank}]: 2025-01-01 10:00:{step % 60:02d} INFO step {step} loss {source.random() * 3:.4f} "
        f"grad_norm {source.random():.3f} lr 1.0e-4 tokens/s 41200\n"
    )


def write_log(path: Path, mib: int) -> None:
    """Progress lines of eight ranks with a survived warning now and then, and a failure at the end."""
    source = random.Random(1)
    block = "".join(progress(step % 8, step, source) for step in range(8000))
    block += "wandb: Network error (ReadTimeout), entering retry loop.\n"
    data = block.encode()
    with path.open("wb") as file:
        for _ in range((mib << 20) // len(data) + 1):
            file.write(data)
        file.write(FAILURE.encode())


def write_ranks(folder: Path, merged: Path) -> None:
    """1,000 ranks: one runs out of memory, all others lose it; a file for each, and one with all of them in turns."""
    source = random.Random(2)
    folder.mkdir()
    lost = "[rank{0}]: RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.3]:30118\n"
    ends = [FAILURE.replace("rank3", "rank613") if rank == 613 else lost.format(rank) for rank in range(RANKS)]
    steps = [[progress(rank, step, source) for step in range(200)] for rank in range(RANKS)]
    for rank in range(RANKS):
        (folder / f"rank_{rank}.log").write_text("".join(steps[rank]) + ends[rank])
    with merged.open("w") as file:
        for step in range(200):
            file.writelines(steps[rank][step] for rank in range(RANKS))
        file.writelines(ends)


def scan(how: str, log: Path) -> str:
    """What the child process does: one diagnosis of a log or a folder."""
    rules = load_rules()
    if log.is_dir():
        found = scan_folder(log, rules)
    else:
        with log.open("rb") as stream:
            found = [scan_log(stream, rules, name="log", finder=find_finder(rules) if how == "hyperscan" else None)]
    result = diagnose(Facts(state="FAILED", exit_code=1), found)
    return f"{result.cause}, rank {result.rank}, line {result.line} of {sum(item.lines for item in found)}"


class Table:
    """One line for each program; ratios to the first that is called ripgrep."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float, float, float, str]] = []

    def run(self, name: str, mib: float, command: Sequence[str]) -> None:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        text = (process.stdout.read() if process.stdout else "").strip()
        _, _, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        cpu = usage.ru_utime + usage.ru_stime
        self.rows.append((name, mib, cpu, wall, usage.ru_maxrss / 1024, text[-60:].replace("\n", " ")))

    def show(self) -> None:
        base = next((cpu / mib for name, mib, cpu, *_ in self.rows if name.startswith("ripgrep")), None)
        print("| program | MiB | CPU s | x ripgrep | clock s | memory MiB | answer |\n|---|---|---|---|---|---|---|")
        for name, mib, cpu, wall, memory, text in self.rows:
            ratio = f"{cpu / mib / base:.2f}" if base else "-"
            print(f"| {name} | {mib:.0f} | {cpu:.2f} | {ratio} | {wall:.2f} | {memory:.0f} | {text} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--gpualert", metavar="PYTHON")
    parser.add_argument("--scan", nargs=2, metavar=("HOW", "LOG"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.scan:
        print(scan(given.scan[0], Path(given.scan[1])))
        return
    rules = load_rules()
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        folder, table = Path(name), Table()
        log, words, ranks, merged = (folder / part for part in ("train.log", "words", "ranks", "merged.log"))
        write_log(log, given.mib)
        write_ranks(ranks, merged)
        words.write_text("\n".join(matcher_of(rules).words) + "\n")
        print(f"{len(matcher_of(rules).words)} literals, {os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
        mib = log.stat().st_size / 2**20
        subprocess.run(["/bin/cat", log], stdout=subprocess.DEVNULL, check=True)
        me = [sys.executable, __file__, "--scan"]
        if shutil.which("rg"):
            table.run("ripgrep -j1 -c -i -F", mib, ["rg", "-j1", "-c", "-i", "-F", "-f", str(words), str(log)])
        if find_finder(rules) is not None:
            table.run("slurmtrain, hyperscan", mib, [*me, "hyperscan", str(log)])
        table.run("slurmtrain, standard library", mib, [*me, "re", str(log)])
        table.run("grep -c -i -F", mib, ["grep", "-c", "-i", "-F", "-f", str(words), str(log)])
        if given.gpualert:
            table.run("gpualert", mib, [given.gpualert, "-c", GPUALERT, str(log)])
        size = merged.stat().st_size / 2**20
        table.run("1,000 ranks, a file each", size, [*me, "re", str(ranks)])
        table.run("1,000 ranks, one file", size, [*me, "re", str(merged)])
        table.show()


if __name__ == "__main__":
    main()
