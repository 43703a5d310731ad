"""The live tests' view of a mini-slurm cluster: run things on it, break it, and look at it from outside.

Everything here reads Slurm's own commands, /proc and files, never slurmtrain's records. It works alike
on the native and on the container cluster: containers share the host's kernel, so their processes are
seen in the host's /proc, and the store has the same path inside and outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outside import Process, cut, read_process, run, wait_until

__all__ = ["Cluster", "Job", "Process", "wait_until"]

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
GONE_STATES = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}


@dataclass(frozen=True)
class Job:
    """One row of squeue."""

    job_id: int
    state: str
    reason: str
    nodes: list[str]
    restarts: int
    partition: str
    user: str


class Cluster:
    """A running cluster, or one lane of it (some nodes with partitions of their own) for parallel tests."""

    def __init__(self, facts: Mapping[str, Any], lane: int = 0, lanes: int = 1) -> None:
        self.facts = dict(facts)
        self.json_path = Path(facts["dir"]) / "cluster.json"
        self.all_nodes: list[str] = list(facts["nodes"])
        if lanes > 1 and int(facts["lanes"]) < lanes:
            raise RuntimeError(f"{lanes} pytest workers need a cluster with lanes: `mini-slurm up --lanes {lanes}`")
        self.nodes = self.all_nodes[lane :: int(facts["lanes"])] if lanes > 1 else self.all_nodes
        self.user: str = facts["user"]["name"]
        self.store = Path(facts["store"])
        self.timers: str = facts["timers"]
        self.timer_values: dict[str, str] = facts["timer_values"]
        self.docker = facts["backend"] == "docker"
        self.has_cgroup = facts["cgroup"] != "none"
        self.has_accounting = bool(facts["accounting"])
        self._prefix = f"lane{lane}-" if lanes > 1 else ""

    @classmethod
    def from_env(cls, lane: int = 0, lanes: int = 1) -> Cluster:
        """The cluster that MINI_SLURM_JSON names; fails with a sentence when there is none."""
        path = os.environ.get("MINI_SLURM_JSON")
        if not path:
            raise RuntimeError("MINI_SLURM_JSON is not set: run `mini-slurm test --live`, or `up` and `env`")
        cluster = cls(json.loads(Path(path).read_text(encoding="utf-8")), lane, lanes)
        answer = cluster.slurm("scontrol", "ping", check=False)
        if "UP" not in answer:
            raise RuntimeError(f"Slurm does not answer on the cluster of {path}: {answer.strip()[:300]}")
        return cluster

    # -- partitions -------------------------------------------------------------------------------

    def partition(self, kind: str = "batch") -> str:
        """Name of this lane's partition of a kind: batch, graced (GraceTime 20) or urgent (preempts both)."""
        return self._prefix + kind

    # -- running things ---------------------------------------------------------------------------

    def as_user(
        self,
        *argv: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 60,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the researcher on the login host, with nothing of the caller's environment."""
        words = [str(word) for word in argv]
        where = str(cwd or self.store)
        user = self.facts["user"]
        full_env = {**self.user_env(), **(env or {})}
        if self.docker:
            settings = [f"{key}={value}" for key, value in full_env.items()]
            prefix = [
                "docker",
                "exec",
                "-i",
                "-u",
                str(user["uid"]),
                "-w",
                where,
                self._container("login"),
                "env",
                "-i",
            ]
            return run([*prefix, *settings, *words], timeout_s=timeout_s, stdin=stdin)
        return run(
            words, env=full_env, cwd=where, timeout_s=timeout_s, stdin=stdin, uid=int(user["uid"]), gid=int(user["gid"])
        )

    def user_env(self) -> dict[str, str]:
        """The researcher's environment after login. In a lane, submit with `-p cluster.partition()`."""
        venv = f"{self.facts['venv']}/bin"
        home, name = str(self.facts["user"]["home"]), self.user
        fixed = {"HOME": home, "USER": name, "LOGNAME": name, "SHELL": "/bin/bash", "LANG": "C.UTF-8"}
        return {**fixed, "PATH": f"{venv}:{PATH}", "SLURM_CONF": str(self.facts["slurm_conf"])}

    def as_root(self, *argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command as root (the cluster's administrator) on the login host."""
        env = {"PATH": PATH, "SLURM_CONF": str(self.facts["slurm_conf"]), "LANG": "C.UTF-8", "HOME": "/root"}
        if self.docker:
            return run(["docker", "exec", "-i", self._container("login"), *argv], timeout_s=timeout_s)
        return run(list(argv), env=env, timeout_s=timeout_s)

    def slurm(self, *argv: str, check: bool = True, timeout_s: float = 60) -> str:
        """Output of one of Slurm's commands, run as root."""
        done = self.as_root(*argv, timeout_s=timeout_s)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(argv)}: rc {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def sbatch(self, *args: str, script: str, cwd: Path | None = None) -> int:
        """Submit a script as the researcher to the lane's batch partition unless `-p` is given; the job id."""
        options = list(args)
        if not any(word == "-p" or word.startswith("--partition") for word in options):
            options += ["-p", self.partition("batch")]
        done = self.as_user("sbatch", "--parsable", *options, stdin=script, cwd=cwd)
        if done.returncode != 0:
            raise AssertionError(f"sbatch: {done.stderr.strip()}")
        return int(done.stdout.split(";")[0])

    # -- looking ----------------------------------------------------------------------------------

    def job(self, job_id: int | str) -> Job | None:
        """The job as slurmctld has it now, finished ones included; None once it is purged."""
        return next((job for job in self.jobs("-j", str(job_id))), None)

    def jobs(self, *filters: str) -> list[Job]:
        """Rows of squeue in all states, of this lane's partitions."""
        fields = "JobID:12,State:24,RestartCnt:8,Partition:32,UserName:32,NodeList:256,ReasonList:200"
        done = self.as_root("squeue", "-h", "-t", "all", "-O", fields, *filters)
        if done.returncode != 0 and "Invalid job id" not in done.stderr:
            raise AssertionError(f"squeue: {done.stderr.strip()}")
        widths = [12, 24, 8, 32, 32, 256, 200]
        rows = [self._parse_job(cut(line, widths)) for line in done.stdout.splitlines() if line.strip()]
        return [row for row in rows if row.partition.startswith(self._prefix)]

    def _parse_job(self, cells: list[str]) -> Job:
        job_id, state, restarts, partition, user, nodes, reason = cells
        return Job(int(job_id), state, reason, self.expand(nodes), int(restarts or 0), partition, user)

    def expand(self, nodelist: str) -> list[str]:
        """n[1-3] -> n1, n2, n3 (as Slurm itself reads it)."""
        if not re.search(r"[\[,]", nodelist):
            return [nodelist] if nodelist else []
        return self.slurm("scontrol", "show", "hostnames", nodelist).split()

    def show_job(self, job_id: int | str) -> dict[str, str]:
        """Fields of `scontrol show job`; empty once the job is purged."""
        text = self.slurm("scontrol", "-o", "show", "job", str(job_id), check=False)
        return dict(re.findall(r"(\w[\w:/]*)=(\S*)", text))

    def wait_state(self, job_id: int | str, *states: str, timeout_s: float = 30) -> Job:
        """Wait until the job is in one of the states."""
        deadline = time.monotonic() + timeout_s
        while (row := self.job(job_id)) is None or row.state not in states:
            if time.monotonic() >= deadline:
                raise AssertionError(
                    f"job {job_id} is not {' or '.join(states)} after {timeout_s:g} s: {row or 'purged'}"
                )
            time.sleep(0.2)
        return row

    def wait_gone(self, job_id: int | str, timeout_s: float = 60) -> None:
        """Wait until the job is finished or purged."""
        wait_until(
            lambda: (row := self.job(job_id)) is None or row.state in GONE_STATES, timeout_s, f"the end of job {job_id}"
        )

    def sacct(self, job_id: int | str, *, steps: bool = False, fields: Sequence[str] = ()) -> list[dict[str, str]]:
        """Accounting rows of a job, every attempt of it (-D), oldest first; State is the first word."""
        if not self.has_accounting:
            return []
        names = list(fields) or ["JobID", "State", "ExitCode", "NodeList", "Submit", "Start", "End", "DerivedExitCode"]
        flags = [] if steps else ["-X"]
        text = self.slurm("sacct", "-n", "-P", "-D", *flags, "-j", str(job_id), "-o", ",".join(names))
        return [dict(zip(names, line.split("|"), strict=True)) for line in text.splitlines()]

    def states_of(self, job_id: int | str) -> list[str]:
        """The State of every attempt in accounting, without 'by uid'."""
        return [row["State"].split()[0] for row in self.sacct(job_id)]

    def wait_accounting(self, job_id: int | str, wanted: Sequence[str], timeout_s: float = 60) -> None:
        """Until accounting has these rows of the job, newest last: it lags behind what slurmctld says."""
        want = list(wanted)
        try:
            wait_until(lambda: self.states_of(job_id) == want, timeout_s, f"accounting has {want} of job {job_id}", 0.5)
        except AssertionError as exc:
            raise AssertionError(f"{exc}; it has {self.states_of(job_id)}") from exc

    def node_state(self, node: str) -> str:
        """A node's state as scontrol has it, in lower case: idle, mixed, down*, idle+drain ..."""
        return self.node_states([node])[node]

    def node_states(self, nodes: Sequence[str]) -> dict[str, str]:
        """Node -> state. From scontrol: after a restart sinfo 22.05 may print mixed for an empty node."""
        text = self.slurm("scontrol", "-o", "show", "node", ",".join(nodes))
        return {name: state.lower() for name, state in re.findall(r"NodeName=(\S+).*? State=(\S+)", text)}

    def processes(self, job_id: int | None = None, node: str | None = None) -> list[Process]:
        """Live processes of the cluster's jobs, by SLURM_JOB_ID in their environment, from the host's /proc."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            process = read_process(entry)
            if process is None or "SLURM_JOB_ID" not in process.environ or not self._ours(process):
                continue
            if job_id is not None and process.environ["SLURM_JOB_ID"] != str(job_id):
                continue
            if node is None or process.node == node:
                found.append(process)
        return found

    def _ours(self, process: Process) -> bool:
        name = process.environ.get("SLURM_CLUSTER_NAME")
        return name == self.facts["cluster_name"] if name else process.node in self.all_nodes

    # -- breaking ---------------------------------------------------------------------------------

    def fault(self, action: str, target: str) -> None:
        """`mini-slurm fault`: kill, power-off, stop, cont, term, start or heal a node or daemon."""
        cluster = ["--dir", str(self.facts["dir"]), "--name", str(self.facts["name"])]
        done = run([str(self.facts["mini_slurm"]), "fault", action, target, *cluster], timeout_s=90)
        if done.returncode != 0:
            raise AssertionError(f"mini-slurm fault {action} {target}: {done.stderr.strip()}")

    def kill_node(self, node: str) -> None:
        """Power loss: slurmd, slurmstepd and all job processes of a node at once."""
        self.fault("power-off", node)

    def kill_slurmd(self, node: str) -> None:
        self.fault("kill", node)

    def start_slurmd(self, node: str) -> None:
        self.fault("start", node)

    def stop_daemon(self, name: str) -> None:
        """SIGSTOP: the daemon hangs."""
        self.fault("stop", name)

    def cont_daemon(self, name: str) -> None:
        self.fault("cont", name)

    def kill_daemon(self, name: str) -> None:
        self.fault("kill", name)

    def start_daemon(self, name: str) -> None:
        self.fault("start", name)

    def signal_process(self, process: Process, number: signal.Signals) -> None:
        """Send a signal to one process of a job."""
        os.kill(process.pid, number)

    # -- putting right ----------------------------------------------------------------------------

    def cancel_all(self) -> None:
        """Cancel every job of the lane and kill its processes, without waiting for KillWait."""
        active = [job for job in self.jobs() if job.state not in GONE_STATES]
        if not active:
            return
        self.slurm("scancel", *(str(job.job_id) for job in active), check=False)
        for process in [process for job in active for process in self.processes(job.job_id)]:
            with contextlib.suppress(ProcessLookupError):
                self.signal_process(process, signal.SIGKILL)

    def restore(self, timeout_s: float = 60) -> None:
        """All daemons running, no job of the lane left, all nodes of the lane idle."""
        self.fault("heal", ",".join(self.nodes))
        wait_until(lambda: "UP" in self.slurm("scontrol", "ping", check=False), 30, "slurmctld answers again")
        deadline = time.monotonic() + timeout_s
        while (bad := self._unclean()) and time.monotonic() < deadline:
            self.cancel_all()
            self.resume_nodes()
            time.sleep(0.3)
        if bad:
            raise AssertionError(f"the cluster did not come back to rest within {timeout_s:g} s: {bad}")

    def resume_nodes(self) -> None:
        """Undo drain and down on the lane's nodes."""
        for node, state in self.node_states(self.nodes).items():
            if re.search(r"down|drain|fail", state):
                self.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)

    def _unclean(self) -> list[str]:
        jobs = [f"job {j.job_id} {j.state}" for j in self.jobs() if j.state not in GONE_STATES]
        states = self.node_states(self.nodes)
        return jobs + [f"{node} {state}" for node, state in states.items() if state != "idle"]

    def _container(self, service: str) -> str:
        return str(self.facts["containers"][service])
