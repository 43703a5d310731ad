"""What a collector is given: where and when the failure was, a folder of its own, and a bounded way to run programs."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmtrain.evidence.bounded import NOT_FOUND, TIMED_OUT, Output, run_bounded
from slurmtrain.evidence.secrets import Masker

_MAX_NOTE = 300


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank's process on this node that still lived when the scene was begun."""

    pid: int
    rank: int


@dataclass(frozen=True, slots=True)
class Scene:
    """One node's scene of one launch. ``to_dict`` gives what a collector in another language reads on its input."""

    out: Path  # the collector's own folder (0700), which is also its working directory
    node: str
    ending: str  # one of ``collector.ENDINGS``
    run_dir: Path
    job_id: str = ""
    attempt: int = 0
    launch: int = 0
    nodes: str = ""  # of the job, as Slurm folds them
    since: float = 0.0  # when the launch began, seconds since the epoch; 0 where nobody knows
    cause: str = ""  # what was diagnosed, where it is known already
    batch_host: bool = True  # this is the node of the batch script
    work_dir: Path = Path("/")
    checkpoint_dir: Path = Path("/")
    log_file: Path | None = None
    log_offset: int = 0  # where the launch begins in it
    ranks: tuple[Rank, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)  # of the launch

    @property
    def store(self) -> Path:
        return self.run_dir.parent.parent

    @property
    def launch_dir(self) -> Path:
        """The launch's own folder: error files, heartbeat, states of ranks."""
        return self.run_dir / "attempts" / f"{self.attempt:03d}" / "launches" / str(self.launch)

    def run(
        self,
        *argv: str,
        timeout_s: float = 5.0,
        max_bytes: int = 1 << 20,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Output:
        """Run a program; one that is not there or does not answer is noted."""
        clean = {**os.environ, "LC_ALL": "C"} if env is None else env
        done = run_bounded(argv, timeout_s=timeout_s, max_bytes=max_bytes, env=clean, cwd=cwd)
        if done.returncode == NOT_FOUND:
            self.note(f"cannot run {argv[0]}: {done.stderr.strip() or 'not found'}")
        elif done.returncode == TIMED_OUT:
            self.note(f"{argv[0]} did not answer within {timeout_s:g} s")
        return done

    def write(self, name: str, text: str | bytes) -> None:
        """A file in the collector's own folder. Secrets in a text are masked, bytes stay as they are."""
        data = text if isinstance(text, bytes) else self.mask(text).encode("utf-8", "surrogateescape")
        descriptor = os.open(self.out / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)

    def mask(self, text: str) -> str:
        """The text without secrets, those of the launch's environment among them."""
        return Masker(self.environ).text(text)

    def note(self, text: str) -> None:
        """What this node lacks, or what a reader should know; it appears in the manifest."""
        one_line = " ".join(self.mask(text).split())[:_MAX_NOTE]
        sys.stderr.write(f"note: {one_line}\n")
        sys.stderr.flush()

    def to_dict(self) -> dict[str, Any]:
        return {
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)},
            **{name: str(getattr(self, name)) for name in ("out", "run_dir", "work_dir", "checkpoint_dir")},
            "log_file": str(self.log_file) if self.log_file else None,
            "ranks": [dataclasses.asdict(rank) for rank in self.ranks],
            "environ": dict(self.environ),
            "store": str(self.store),
            "launch_dir": str(self.launch_dir),
        }


def scene_from_dict(data: Mapping[str, Any], out: Path) -> Scene:
    """Inverse of ``to_dict`` for another folder. Raises ``KeyError``, ``TypeError``, ``ValueError``."""
    known: dict[str, Any] = {f.name: data[f.name] for f in dataclasses.fields(Scene) if f.name in data}
    paths: dict[str, Any] = {
        name: Path(known[name]) for name in ("run_dir", "work_dir", "checkpoint_dir") if name in known
    }
    log_file = Path(known["log_file"]) if known.get("log_file") else None
    ranks = tuple(Rank(int(row["pid"]), int(row["rank"])) for row in known.get("ranks", ()))
    return Scene(**{**known, **paths, "out": out, "log_file": log_file, "ranks": ranks})
