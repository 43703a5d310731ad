"""What must hold after every schedule, from what Slurm ran and what lies on the disk; records alone prove nothing."""

from __future__ import annotations

import itertools

from cluster_world import Execution, Training
from world import World

from slurmtrain.core.decision import Action, RunState
from slurmtrain.core.events import JobSeen
from slurmtrain.ops.launch_exit import read_launch_exit
from slurmtrain.store.journal import read_journal

CANCELLED_STATES = {RunState.STOPPED, RunState.TERMINATED}
GHOST_S = 15.0


def check(world: World) -> list[str]:
    """Sentences about what went wrong, none when all is well."""
    if world.discarded:
        return []
    return [
        *world.problems,
        *_one_training_at_a_time(world),
        *_cancelled_stays_cancelled(world),
        *_attempts_and_decisions(world),
        *_checkpoints_are_used(world),
        *_the_end_is_right(world),
        *_states_follow_each_other(world),
    ]


def trainings(world: World) -> list[Training]:
    found = [t for e in world.cluster.executions for t in e.trainings if t.ended is None or t.ended > t.started]
    return sorted(found, key=lambda t: t.started)


def _one_training_at_a_time(world: World) -> list[str]:
    found = []
    late = world.machine.faults.late_s
    every = trainings(world)
    for i, first in enumerate(every):
        for second in every[i + 1 :]:
            overlap = min(first.ended or world.now(), second.ended or world.now()) - second.started
            if overlap <= 0:
                continue
            ghost = first.execution is not second.execution and _was_cut_off(world, first.execution)
            if ghost and overlap <= GHOST_S + late + world.ghost_allowance:
                continue
            found.append(
                f"two at once for {overlap:.1f} s: {first.execution.name} launch {first.launch} and "
                f"{second.execution.name} launch {second.launch} from {second.started - world.epoch:.1f} on"
            )
    return found


def _was_cut_off(world: World, execution: Execution) -> bool:
    return execution.name in world.cut_off


def _cancelled_stays_cancelled(world: World) -> list[str]:
    at = world.cancelled_at
    if at is None or world.released or _nobody_can_know_of_the_cancel(world):
        return []
    found = [
        f"execution {e.name} began {e.started - at:.1f} s after the run was cancelled"
        for e in world.cluster.executions
        if e.started > at and e.trainings  # a superfluous job ends at its gate
    ]
    # An agent that had looked just before the cancel may still write down its end; nothing runs after it.
    ends = CANCELLED_STATES | world.ended_before_cancel | {RunState.HELD, RunState.FAILED}
    if not found and world.state.state not in ends:
        found.append(f"a cancelled run is {world.state.state.value}")
    return found


def _nobody_can_know_of_the_cancel(world: World) -> bool:
    """No accounting, the node was lost before slurmstepd could write, and Slurm forgot the job before anybody saw it.

    What is left then looks as if the script had been killed. Whoever looks once, while it waits or is CANCELLED, knows.
    """
    job, restart = world.cancelled
    if _was_never_heard_of(world, job):
        return True
    if world.options.accounting or f"{job}r{restart - 1}" not in world.cut_off:
        return False
    seen = (event for event in read_journal(world.run.journal) if isinstance(event, JobSeen))
    return not any(event.job_id == job and event.restart_count >= restart for event in seen)


def _was_never_heard_of(world: World, job: str) -> bool:
    """The reply to its submission was lost, nobody saw it or let it in, and Slurm forgets its jobs within a minute."""
    seen = {getattr(event, "job_id", None) for event in read_journal(world.run.journal)}
    return job not in {*seen, *world.run.read_submissions().values()} and world.options.min_job_age < 60


def _attempts_and_decisions(world: World) -> list[str]:
    found = []
    attempts = world.run.read_attempts()
    # Who stops a run decides about the newest attempt that a faulty store lets be seen; the run has ended all the same.
    stopped = world.hostile and world.stop_asked_at is not None and world.state.state is RunState.STOPPED
    owners: dict[tuple[str, object], int] = {}
    for attempt in attempts:
        owner = attempt.read_owner()
        if owner is None:
            found.append(f"attempt {attempt.number} belongs to nobody")
            continue
        key = (str(owner.get("job_id")), owner.get("restart_count"))
        if key in owners:
            found.append(f"attempts {owners[key]} and {attempt.number} are both of execution {key}")
        owners[key] = attempt.number
        if attempt.read_decision() is None and not stopped:
            found.append(f"attempt {attempt.number} was never decided about")
    # A gate that cannot write the store for a while lets the training run without a record.
    trained = {
        (str(e.job.job_id), e.restart)
        for e in world.cluster.executions
        if any(t.launch != "none.0" for t in e.trainings) or (e.trainings and not world.hostile)
    }
    lost = trained - set(owners)
    if lost:
        found.append(f"executions that trained and are no attempts: {sorted(lost)}")
    return found


def _checkpoints_are_used(world: World) -> list[str]:
    """No launch begins before the newest checkpoint that was there (late visibility apart)."""
    found, high = [], 0
    late = world.machine.faults.late_s
    every = trainings(world)
    for training in every:
        earlier = [
            t
            for t in every
            if t.ended is not None
            and t.ended < training.started - late - 1
            and not (_was_cut_off(world, t.execution) and t.ended > training.execution.started)
        ]  # a ghost may save after its successor had looked
        high = max((t.step - t.step % world.cluster.checkpoint_every for t in earlier), default=0)
        if training.began_at_step < high:
            found.append(f"launch {training.launch} began at step {training.began_at_step}, there was {high}")
    return found


def _end_was_known(world: World, training: Training) -> bool:
    """Not where the agent died in the few writes in which it notes that its launch has ended: it is started anew."""
    attempt, _, number = training.launch.partition(".")
    if training.execution.taken:
        return False  # Slurm took the job away before anybody had decided: its next execution finds nothing left to do
    if not attempt.isdigit():
        return False
    folder = world.run.attempt(int(attempt))
    decided_at = float((folder.read_decision() or {}).get("at") or world.now())
    if decided_at - (training.ended or 0) < world.machine.faults.late_s:
        return False  # the agent had died, and on another host nothing of the end was to be seen yet
    end = read_launch_exit(folder, int(number))
    if end is not None and end.stop_reason is not None:
        return False  # a signal of Slurm's had come that the agent died too early to look into: it may have left for it
    return end is not None and abs(end.started_at - training.started) < 5.0


def _the_end_is_right(world: World) -> list[str]:
    state = world.state.state
    wanted_stop = world.cancelled_at is not None or world.stop_asked_at is not None
    if state in CANCELLED_STATES and not wanted_stop:
        return [f"nobody stopped the run, but it is {state.value}: {world.state.last_decision}"]
    finished = [t for t in trainings(world) if t.exit_code == 0 and not t.asked and t.step >= world.options.goal]
    if state is RunState.COMPLETED and not finished:
        return ["the run is Completed without an end of the training"]
    if finished and not wanted_stop and state is not RunState.COMPLETED and _end_was_known(world, finished[0]):
        return [f"the training finished, but the run is {state.value}: {world.state.last_decision}"]
    found = []
    if finished:
        again = [t for t in trainings(world) if t.started > (finished[0].ended or 0) + 0.001]
        if again and _end_was_known(world, finished[0]):
            found.append(f"launch {again[0].launch} began after launch {finished[0].launch} had finished")
    ends = [a for a in world.run.read_attempts() if (a.read_decision() or {}).get("action") == Action.COMPLETE.value]
    if len(ends) > 1:
        found.append(f"completed {len(ends)} times")
    return found


_P, _Q, _S, _R = RunState.PENDING, RunState.INQUEUE, RunState.STARTING, RunState.RUNNING
_ENDED = {RunState.COMPLETED, RunState.FAILED, RunState.STOPPED, RunState.TERMINATED}
_FOLLOWS: dict[RunState, set[RunState]] = {
    _P: {_Q, _S, RunState.HELD, RunState.FAILED, RunState.STOPPED, RunState.TERMINATED},
    _Q: {_S, _R, _P, RunState.PREEMPTED, RunState.HELD} | _ENDED,  # _R: two watchers' looks, written down crosswise
    _S: {_R, _Q, _P, RunState.PREEMPTED, RunState.HELD} | _ENDED,
    _R: {_S, _Q, _P, RunState.PREEMPTED, RunState.HELD} | _ENDED,
    RunState.PREEMPTED: {_P, _Q, _S, RunState.STOPPED, RunState.TERMINATED},
    RunState.HELD: {_P, RunState.STOPPED, RunState.TERMINATED},
}


def _states_follow_each_other(world: World) -> list[str]:
    """The states that the journal tells of make a path: an end is the last of them, and Held ends by a person."""
    states = [change.state for change in world.state.history]
    return [
        f"{one.value} was followed by {two.value} ({' '.join(s.value for s in states)})"
        for one, two in itertools.pairwise(states)
        if one not in _FOLLOWS or (not world.hostile and two not in _FOLLOWS[one])  # a full store leaves changes out
    ]
