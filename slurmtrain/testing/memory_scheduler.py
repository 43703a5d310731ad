"""Which pending job starts where, and whom it pushes out."""

from __future__ import annotations

from slurmtrain.testing.memory_controller import Controller
from slurmtrain.testing.memory_model import MemoryJob
from slurmtrain.testing.memory_records import ACTIVE


def schedule(controller: Controller) -> None:
    """Start what can start, higher tiers first, then in the order of submission."""
    tiers = controller.partitions
    waiting = [job for job in controller.jobs.values() if job.waiting]
    for job in sorted(
        waiting, key=lambda job: (-tiers[job.request.partition].priority_tier, job.submit_time, job.raw_id)
    ):
        if job.held:
            continue
        if job.begin_time is not None and job.begin_time > controller.clock():
            job.reason = "BeginTime"
            continue
        if job.begin_time is None:
            job.begin_time = controller.clock()
        _try_start(controller, job)


def _try_start(controller: Controller, job: MemoryJob) -> None:
    if set(job.request.required) & job.excluded:
        job.reason = "BadConstraints"
        return
    free = [name for name in _usable(controller, job) if _free_cpus(controller, name) >= _needed(controller, job)]
    nodes = _choose(job, free)
    if nodes is not None:
        controller.start(job, nodes)
        return
    job.reason = "Resources"
    if not any(name in controller.nodes for name in _usable(controller, job)):
        job.reason = "ReqNodeNotAvail"
        return
    _preempt_for(controller, job)


def _usable(controller: Controller, job: MemoryJob) -> list[str]:
    nodes = (node for node in controller.nodes.values() if not node.down and not node.drain)
    return [node.name for node in nodes if node.name not in job.excluded]


def _needed(controller: Controller, job: MemoryJob) -> int:
    return controller.config.cpus_per_node if job.request.exclusive else 1


def _cpus_of(controller: Controller, name: str, jobs: list[MemoryJob]) -> int:
    return sum(_needed(controller, job) for job in jobs if name in job.nodes)


def _occupying(controller: Controller) -> list[MemoryJob]:
    return [job for job in controller.jobs.values() if job.base in ACTIVE or job.completing]


def _free_cpus(controller: Controller, name: str) -> int:
    return controller.config.cpus_per_node - _cpus_of(controller, name, _occupying(controller))


def _choose(job: MemoryJob, free: list[str]) -> list[str] | None:
    required = list(job.request.required)
    if any(name not in free for name in required):
        return None
    wanted = max(job.request.nodes, len(required))
    chosen = required + [name for name in free if name not in required][: wanted - len(required)]
    return sorted(chosen, key=free.index) if len(chosen) == wanted else None


def _preempt_for(controller: Controller, job: MemoryJob) -> None:
    """Free enough nodes by preempting jobs of lower tiers; all of them or none."""
    victims = {name: _victims(controller, job, name) for name in _usable(controller, job)}
    freed: list[str] = []
    for name, jobs in victims.items():
        room = _free_cpus(controller, name) + _cpus_of(controller, name, jobs)
        if room >= _needed(controller, job):
            freed.append(name)
    nodes = _choose(job, freed)
    for name in nodes or ():
        for victim in victims[name]:
            if _free_cpus(controller, name) < _needed(controller, job):
                _preempt(controller, victim)


def _victims(controller: Controller, job: MemoryJob, name: str) -> list[MemoryJob]:
    tier = controller.partitions[job.request.partition].priority_tier
    found = []
    for other in controller.jobs.values():
        partition = controller.partitions[other.request.partition]
        if other.running and name in other.nodes and partition.priority_tier < tier and partition.preempt_mode != "OFF":
            found.append(other)
    return found


def _preempt(controller: Controller, victim: MemoryJob) -> None:
    """With a grace time only TERM to the steps and an earlier end; the state stays RUNNING."""
    if not victim.running or victim.preempt_time is not None:
        return
    grace = controller.partitions[victim.request.partition].grace
    if not grace:
        controller.evict(victim)
        return
    victim.preempt_time = controller.clock()
    victim.end_time = controller.clock() + grace
    victim.grace_preempted = True
    controller.send_signal(victim, "TERM", "steps")


def cpus_in_use(controller: Controller, name: str) -> int:
    return _cpus_of(controller, name, _occupying(controller))
