"""Runs of several kinds, with everything that a page shows: made as the agent leaves them."""

# ruff: noqa: E501 - long lines of logs, markup and scripts are easier to read whole

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from made_runs import T0, MadeRun, Slurm, make_run

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.core.spec import Environment, Resources, Retry
from slurmtrain.evidence.manifest import NodeScene, Taking, write_manifest

HOSTILE = "</script><script>document.title='owned'</script>\"'><img src=x onerror=alert(1)>\u202e\x1b[2J\x00{{7*7}}"
OOM = {
    "cause": "cuda_oom", "family": "gpu_app", "retryable": True, "action": "requeue", "confidence": 0.93,
    "sentence": "Rank 3 ran out of GPU memory: 1.50 GiB were wanted, 0.31 GiB were free",
}  # fmt: skip


class Teller:
    """A run whose events come at chosen times."""

    def __init__(
        self, store: Path, name: str, *, nodes: int = 2, ranks: int = 4, command: tuple[str, ...] = ()
    ) -> None:
        resources = Resources(
            nodes=nodes, tasks_per_node=ranks, gpus_per_node=ranks, time_limit="24:00:00", partition="h100"
        )
        self.run: MadeRun = make_run(
            store, name, name=name, nodes=nodes, resources=resources, retry=Retry(in_place=3, requeues=3),
            environment=Environment(setup=("module load cuda/12.4",), variables={"NCCL_DEBUG": "WARN"}),
        )  # fmt: skip
        self.at = T0
        self.events: list[ev.Event] = []
        self.slurm = Slurm(nodes=tuple(f"n{i}" for i in range(1, min(nodes, 4) + 1)))
        self.log = self.run.dir.logs / "train-1.log"
        self.write(ev.Submitted, submission=0, job_id="1")

    def write(self, kind: type[ev.Event], *, after: float = 0, who: str = "agent", **values: Any) -> Teller:
        self.at += after
        self.events.append(kind(at=self.at, who=who, **values))
        return self

    def attempt(self, number: int, nodes: str, *, waited: float = 60, reason: str = "Resources") -> Teller:
        self.write(
            ev.JobSeen,
            who="watcher",
            attempt=number - 1,
            job_id="1",
            restart_count=number,
            state="PENDING",
            reason=reason,
        )
        return self.write(
            ev.AttemptStarted,
            after=waited,
            who="gate",
            attempt=number,
            job_id="1",
            restart_count=number,
            host="n1",
            nodes=nodes,
        )

    def launch(self, attempt: int, number: int, lasted: float, *, before: int | None = None, **end: Any) -> Teller:
        place = {"attempt": attempt, "launch": number}
        resume = f"/scratch/ann/ckpt/step-{before}" if before else None
        self.write(ev.LaunchStarted, after=8, **place, resume_from=resume, progress=before, log_file="logs/train-1.log")
        return self.write(ev.LaunchEnded, after=lasted, **place, duration_s=lasted, **end)

    def failed(self, attempt: int, number: int, action: Action, state: RunState, reason: str, **found: Any) -> Teller:
        self.write(ev.Diagnosed, after=1, attempt=attempt, launch=number, diagnosis={**OOM, **found})
        cause = str(found.get("cause", "cuda_oom"))
        exclude = (str(found["node"]),) if action is Action.REQUEUE and found.get("node") else ()
        return self.decided(attempt, number, action, state, cause=cause, reason=reason, exclude=exclude)

    def decided(self, attempt: int, launch: int, action: Action, state: RunState, **more: Any) -> Teller:
        budget: Any = "program" if action is Action.REQUEUE else "none"
        decision = decision_to_dict(Decision(action, state, budget=budget, **more))
        self.write(ev.Decided, after=1, attempt=attempt, launch=launch, decision=decision)
        self.at += 2
        return self


def failed(store: Path) -> Teller:
    """Three launches over two attempts, each out of memory on the same rank."""
    told = Teller(store, "llama-8b-sft")
    lines = [f"{i % 8}: step {i} loss {3 - i / 50:.3f} 812 tok/s" for i in range(40)]
    lines.insert(
        30,
        "3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB",
    )
    lines.insert(31, "3:     loss.backward()")
    told.log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    evidence = [{"line": 31, "text": lines[30], "file": "logs/train-1.log"}]
    where = {"rank": 3, "node": "n1", "file": "logs/train-1.log", "line": 31, "evidence": evidence}
    exits = tuple(
        {"rank": r, "node": "n1" if r < 4 else "n2", "exit_code": 1 if r == 3 else None, "signal": None if r == 3 else 9, "order": 0 if r == 3 else 1 + r}
        for r in (3, 0, 1, 2, 4, 5)
    )  # fmt: skip
    told.attempt(0, "n[1-2]", waited=5400)
    told.launch(0, 0, 2400, exit_code=1, progress=800, step=1000, rank_exits=exits)
    told.failed(0, 0, Action.RESTART_IN_PLACE, RunState.RUNNING, "the first time; it may pass", **where)
    told.launch(0, 1, 900, before=800, exit_code=1, progress=800, step=990, rank_exits=exits)
    told.failed(0, 1, Action.REQUEUE, RunState.PENDING, "the same cause without a newer checkpoint", **where)
    told.write(ev.Acted, attempt=0, action="requeue", accepted=True, detail="requeued job 1 without n1")
    told.attempt(1, "n[3-4]", waited=1800, reason="Priority")
    told.launch(1, 0, 1200, before=800, exit_code=1, progress=1000, step=1190, rank_exits=exits)
    where = {
        **where,
        "suspects": [{"node": "n3", "confidence": 0.8, "why": "another process holds 60 GiB"}],
        "node": "n3",
    }
    told.failed(1, 0, Action.STOP, RunState.FAILED, "on other nodes too: no retry can cure it", **where)
    full = ("/dev/shm (/dev/shm) is full: 100.0 % used, 0.00 of 94.20 GiB free",)
    quiet = ("no InfiniBand adapter (/sys/class/infiniband)",)
    xid = ("Xid 31 of GPU 0000:41:00: 3 times",)
    scene = {"n3": {"kernel": xid, "disk": full, "fabric": quiet}, "n4": {"disk": full, "fabric": quiet}}
    take_scene(told, 1, 0, scene)
    return told


def take_scene(told: Teller, attempt: int, launch: int, notes: dict[str, dict[str, tuple[str, ...]]]) -> None:
    """Scenes as collectors leave them: node → collector → its notes."""
    for node, collectors in notes.items():
        folder = told.run.dir.attempt(attempt).launch(launch) / "scene" / node
        takings = []
        for name, texts in collectors.items():
            (folder / name).mkdir(parents=True)
            (folder / name / "told.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
            takings.append(Taking(name, "taken", size=1, count=1, files=("told.txt",), notes=texts))
        takings.append(Taking("gpu", "timed_out", "longer than 20 s"))
        write_manifest(NodeScene(folder, node, "failed", "cuda_oom", told.at, 3.0, 20.0, True, tuple(takings)))


def finished(store: Path) -> Teller:
    """One launch, done."""
    told = Teller(store, "resnet50", nodes=1, ranks=8)
    told.attempt(0, "n1", waited=30).launch(0, 0, 7200, exit_code=0, done=True, progress=5000, step=5000)
    told.decided(0, 0, Action.COMPLETE, RunState.COMPLETED, cause="no_failure", reason="the training said so")
    return told


def waiting(store: Path) -> Teller:
    """Submitted, nothing else."""
    return Teller(store, "queued", nodes=2)


def hostile(store: Path) -> Teller:
    """Every text of it wants out of its place."""
    told = Teller(store, "hostile")
    told.log.write_text(f"0: fine\n3: {HOSTILE} CUDA out of memory\n", encoding="utf-8")
    told.attempt(0, "n[1-2]", reason=HOSTILE)
    told.launch(0, 0, 60, exit_code=1)
    evidence = [{"line": 2, "text": HOSTILE, "file": "logs/train-1.log"}]
    told.failed(
        0, 0, Action.STOP, RunState.FAILED, HOSTILE, sentence=HOSTILE, node=HOSTILE, rank=3, evidence=evidence,
        notes=[HOSTILE], file=HOSTILE, cause="cuda_oom",
    )  # fmt: skip
    told.write(ev.StopRequested, who=HOSTILE, by=HOSTILE, reason=HOSTILE)
    take_scene(told, 0, 0, {"n1": {"kernel": (f"Xid 79 {HOSTILE}",)}})
    return told


def huge(store: Path) -> Teller:
    """4,096 ranks on 512 nodes; one failed first, a node says nothing."""
    told = Teller(store, "gpt-175b", nodes=512, ranks=8)
    told.log.write_text("0: step 1\n2049: NCCL WARN Call to ibv_modify_qp failed\n", encoding="utf-8")
    told.attempt(0, "gpu[001-512]", waited=86400)
    exits = tuple(
        {"rank": r, "node": f"gpu{r // 8 + 1:03d}", "exit_code": 1, "signal": None, "order": r}
        for r in range(3000, 4000)
    )
    told.launch(0, 0, 40000, exit_code=1, progress=9000, step=9500, rank_exits=exits)
    folder = told.run.dir.attempt(0).nodes
    folder.mkdir(parents=True)
    for number in range(1, 512):
        (folder / f"gpu{number:03d}.json").write_text('{"node": "x", "at": 1}', encoding="utf-8")
    evidence = [{"line": 2, "text": "NCCL WARN Call to ibv_modify_qp failed", "file": "logs/train-1.log"}]
    suspects = [{"node": "gpu257", "confidence": 0.6, "why": "it reported the broken link"}]
    told.failed(
        0, 0, Action.REQUEUE, RunState.PENDING, "a broken link: elsewhere", cause="ib_link_error", rank=2049, node="gpu257",
        sentence="Rank 2049 on gpu257 lost its InfiniBand link", evidence=evidence, suspects=suspects,
    )  # fmt: skip
    return told


def long(store: Path) -> Teller:
    """1,000 attempts: preempted, crashed, lost."""
    told = Teller(store, "forever")
    step = 0
    for number in range(1000):
        told.attempt(number, "n[1-2]", waited=300 + 10 * (number % 7))
        after = step + (0 if number % 3 else 100)
        told.launch(
            number, 0, 600 + number % 50, before=step or None, exit_code=1, progress=after or None, step=after + 20
        )
        cause = ("node_fail", "nccl_timeout", "native_crash")[number % 3]
        told.failed(
            number,
            0,
            Action.REQUEUE,
            RunState.PENDING,
            "again",
            cause=cause,
            sentence=f"{cause} again",
            rank=number % 8,
            node="n2",
        )
        step = after
    return told


def hung(store: Path) -> Teller:
    """A collective that never ends: rank 5 is stopped, 9 waits for the storage, 12 had ended, the others wait for them."""
    told = Teller(store, "hung", nodes=2, ranks=8)
    told.log.write_text("0: step 41\n", encoding="utf-8")
    told.attempt(0, "n[1-2]")
    exits = tuple(
        {"rank": r, "node": f"n{r // 8 + 1}", "exit_code": None, "signal": 9, "order": r} for r in range(16) if r != 12
    )
    told.launch(0, 0, 3600, exit_code=137, step=41, rank_exits=exits)
    folder = told.run.dir.attempt(0).launch(0)
    folder.mkdir(parents=True)
    letters = {5: "T", 9: "D"}
    for node in (1, 2):
        ranks = [
            {"rank": r, "pid": 100 + r, "state": letters.get(r, "S"), "step": 41 if r in letters else 42}
            for r in range(8 * node - 8, 8 * node)
            if r != 12
        ]
        (folder / f"ranks-n{node}.json").write_text(json.dumps({"node": f"n{node}", "ranks": ranks}), encoding="utf-8")
    told.failed(
        0, 0, Action.HOLD, RunState.HELD, "it hung twice at the same step", cause="hang", rank=5, node="n1",
        sentence="Nothing was heard of it for 30 min: rank 5 on n1 is stopped by a signal, and the others wait for it",
    )  # fmt: skip
    return told


KINDS: dict[str, Callable[[Path], Teller]] = {
    "failed": failed, "finished": finished, "waiting": waiting, "hostile": hostile, "huge": huge, "long": long,
    "hung": hung,
}  # fmt: skip


def make(kind: str, store: Path) -> Teller:
    """A run of this kind, with its journal written."""
    told = KINDS[kind](store)
    told.run.write(*told.events)
    return told
