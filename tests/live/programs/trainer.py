#!/usr/bin/env python3
"""A training of a few lines for live tests: real steps, real checkpoints, and misbehaviour on request.

Its state is a chain of hashes: the checkpoint of step N holds ``chain(N)``, which only N steps in a row can give. So a
test that reads the last checkpoint knows whether a step was lost, done twice, or begun anew. Every rank writes what
happens to it to ``record.jsonl`` in the working directory; nothing of that comes from slurmtrain.

Standard library only; runs under srun, torchrun, ``bash -c`` and by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

from errors import ERRORS

ENV = os.environ
RANK = int(ENV.get("RANK") or ENV.get("SLURM_PROCID") or 0)
WORLD_SIZE = int(ENV.get("WORLD_SIZE") or ENV.get("SLURM_NTASKS") or 1)
NODE = ENV.get("SLURMD_NODENAME") or socket.gethostname()
LAUNCH = f"{ENV.get('SLURMTRAIN_ATTEMPT', '?')}.{ENV.get('SLURMTRAIN_LAUNCH', '?')}"
SEED = "0" * 16


def chain(steps: int, start: str = SEED) -> str:
    """The state after so many steps."""
    for _ in range(steps):
        start = hashlib.sha256(start.encode()).hexdigest()[:16]
    return start


def record(event: str, **facts: object) -> None:
    """One line, whole, also with many ranks."""
    line = {
        "event": event,
        "launch": LAUNCH,
        "rank": RANK,
        "node": NODE,
        "pid": os.getpid(),
        "at": time.time(),
        **facts,
    }
    descriptor = os.open("record.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


class Stop:
    """What a rank does about signals and the stop file."""

    def __init__(self, how: str, slow_save_s: float) -> None:
        self._how, self.slow_save_s, self.seen = how, slow_save_s, ""
        self._file = Path(ENV.get("SLURMTRAIN_STOP_FILE") or "/nonexistent")
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGCONT):
            if how == "ignore":
                signal.signal(number, signal.SIG_IGN)
            elif how in ("save", "note"):
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        record("signal", signal=signal.Signals(number).name)
        if number in (signal.SIGUSR2, signal.SIGTERM):
            self.seen = self.seen or signal.Signals(number).name

    @property
    def wanted(self) -> str:
        """Why to save and leave now, or an empty text."""
        if self._how == "save" and self.seen:
            return self.seen
        return "file" if self._how in ("save", "file") and self._file.exists() else ""


class Fault:
    """Fails the first ``launches`` launches (0: none, -1: all) from a step on, on one rank, or only on one node."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        done = self._count_launch()
        self._at: int = args.fail_at + done * args.fail_further
        within = args.fail_launches < 0 or done < args.fail_launches
        self._due: bool = within and args.fail_rank in (RANK, -1) and args.fail_node in ("", NODE)

    def _count_launch(self) -> int:
        """Launches before this one; each rank counts for itself, in a file."""
        path = Path(f"launches-{RANK}.count")
        done = int(path.read_text()) if path.exists() else 0
        path.write_text(str(done + 1))
        return done

    def at_step(self, step: int) -> None:
        """Once, at the step or the first one after it: those that -K ends may have saved a later step."""
        if self._due and step >= self._at:
            self._due = False
            record("fault", kind=self._args.fail, step=step)
            sys.stdout.flush()
            _fail(self._args.fail)


def _fail(kind: str) -> None:
    if kind in ERRORS:
        text, code = ERRORS[kind]
        print(text, file=sys.stderr, flush=True)
        os._exit(code)
    name, _, value = kind.partition(":")
    if name == "exit":
        os._exit(int(value))
    if name == "signal":
        number = signal.Signals[f"SIG{value}"]
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    if name == "memory":
        hog = [bytearray(16 << 20) for _ in range(int(value or 100000) // 16)]  # MiB; a cgroup kills us first
        record("survived", mib=16 * len(hog))
    if name == "hang":
        while True:
            time.sleep(60)


class Trainer:
    """One rank. Rank 0 writes the checkpoints; with ``--everyone`` each rank waits for it to have done so."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._folder = Path(args.checkpoints or ENV.get("SLURMTRAIN_CHECKPOINT_DIR") or "checkpoints")
        self._stop = Stop(args.on_stop, args.slow_save)
        self._fault = Fault(args)
        self._step, self._chain, self._starts = self._begin()

    def _begin(self) -> tuple[int, str, list[str]]:
        path = ENV.get("SLURMTRAIN_RESUME_FROM") or (self._own_newest() if self._args.find_newest else "")
        if path:
            state = json.loads(Path(path).read_text())
            step, link, starts = state["step"], state["chain"], state["starts"]
        else:
            step, link, starts = 0, SEED, []
        record("start", step=step, resume_from=path or None, argv=sys.argv[1:], world=WORLD_SIZE)
        print(f"starts at step {step} of {self._args.steps}", flush=True)
        return step, link, [*starts, f"{LAUNCH}@{step}"]

    def _own_newest(self) -> str:
        found = sorted(self._folder.glob("step-*.json"))
        return str(found[-1]) if found else ""

    def run(self) -> int:
        while self._step < self._args.steps:
            self._fault.at_step(self._step)
            time.sleep(self._args.pace)
            self._step += 1
            self._chain = chain(1, self._chain)
            if self._args.tell_steps:
                record("step", step=self._step)
            if self._step % self._args.print_every == 0:
                print(f"step {self._step}/{self._args.steps} loss {3.0 / (1 + self._step):.4f}", flush=True)
            if why := self._stop.wanted:
                time.sleep(self._stop.slow_save_s)
                self._save()
                record("left", why=why, step=self._step)
                print(f"asked to stop ({why}): saved step {self._step}, leaves", flush=True)
                return int(self._args.stop_exit)
            if self._step % self._args.checkpoint_every == 0:
                self._save()
        self._save()
        record("finished", step=self._step)
        print(f"training finished after {self._step} steps", flush=True)
        if self._args.done and RANK == 0:
            Path(ENV["SLURMTRAIN_DONE_FILE"]).touch()
        return int(self._args.exit_code)

    def _save(self) -> None:
        if RANK != 0:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        final = self._folder / f"step-{self._step:06d}.json"
        temporary = self._folder / f".{final.name}.{os.getpid()}.tmp"
        with temporary.open("w") as stream:
            json.dump({"step": self._step, "chain": self._chain, "starts": self._starts}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(final)
        if self._args.tell_steps:
            record("saved", step=self._step)
        old = [path for path in self._folder.glob("step-*.json") if _step_of(path) <= self._step]
        for path in sorted(old)[: -self._args.keep]:
            path.unlink(missing_ok=True)


def _step_of(path: Path) -> int:
    return int(re.findall(r"\d+", path.name)[-1])


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds a step takes")
    parser.add_argument("--tell-steps", action="store_true", help="each step and each save into the record")
    parser.add_argument("--print-every", type=int, default=5)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--checkpoints", help="folder (default: what slurmtrain says, else ./checkpoints)")
    parser.add_argument("--keep", type=int, default=3, help="so many checkpoints are kept")
    parser.add_argument("--find-newest", action="store_true", help="without a hint, resume from its own newest one")
    parser.add_argument(
        "--on-stop",
        choices=("save", "file", "ignore", "note", "default"),
        default="save",
        help="save: on USR2, TERM or the stop file save and leave; file: heed the file only, die of signals;"
        " ignore: ignore all signals and the file; note: write signals down and go on; default: die of them",
    )
    parser.add_argument("--slow-save", type=float, default=0.0, help="seconds that the last save takes")
    parser.add_argument("--stop-exit", type=int, default=0, help="exit code after save-and-leave")
    parser.add_argument("--exit-code", type=int, default=0, help="exit code at the end")
    parser.add_argument("--done", action="store_true", help="touch SLURMTRAIN_DONE_FILE at the end")
    kinds = f"{', '.join(ERRORS)}, exit:N, signal:NAME, memory[:MIB], hang"
    parser.add_argument("--fail", default="exit:1", help=f"what goes wrong: {kinds}")
    parser.add_argument("--fail-launches", type=int, default=0, metavar="K", help="in the first K launches; -1: in all")
    parser.add_argument("--fail-at", type=int, default=0, metavar="STEP")
    parser.add_argument("--fail-further", type=int, default=0, metavar="N", help="N steps later at each launch")
    parser.add_argument("--fail-rank", type=int, default=0, metavar="R", help="-1: every rank")
    parser.add_argument("--fail-node", default="", metavar="NODE", help="only there")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(Trainer(parse_arguments(sys.argv[1:])).run())
