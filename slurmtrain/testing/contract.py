"""What every SlurmClient must do, as tests over a stage: the client in memory, the command line's on a real cluster…

Use it from pytest::

    class TestMyClient(SlurmClientContract):
        @pytest.fixture
        def stage(self): ...
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState, is_running, is_waiting
from slurmtrain.errors import JobNotFoundError, SlurmRefusedError
from slurmtrain.testing.expect import (
    STUBBORN,
    UNKNOWN,
    ended,
    expect,
    expect_equal,
    expect_error,
    queued_again,
    rows,
    started,
)
from slurmtrain.testing.memory_model import Behaviour
from slurmtrain.testing.stage import Stage, wait_for, wait_for_job


class _Base:
    accounting = True


class LookingContract(_Base):
    """What a client sees."""

    def test_a_running_job_is_seen_with_its_facts(self, stage: Stage) -> None:
        job_id = stage.submit("--time=0:30:00", "-N", "2")
        job = started(stage, job_id)
        expect_equal((job.job_id, job.raw_job_id), (job_id, job_id.base), "ids")
        expect_equal(len(stage.client.expand_nodes(job.nodes)), 2, "nodes")
        expect_equal((job.node_count, job.restart_count), (2, 0), "node count and restarts")
        expect_equal(job.time_limit, timedelta(minutes=30), "time limit")
        expect_equal((job.exit_code, job.signal, job.preempt_time), (None, None, None), "end of a running job")
        expect_equal(job.partition, stage.partition("batch"), "partition")
        expect(job.requeue and job.user_id is not None, "requeue and user")
        expect(job.start_time and job.end_time and job.submit_time, "times")
        expect_equal(job.end_time and job.start_time and job.end_time - job.start_time, timedelta(minutes=30), "end")

    def test_exit_zero_is_completed(self, stage: Stage) -> None:
        job_id = stage.submit()
        started(stage, job_id)
        stage.finish(job_id)
        job = ended(stage, job_id, BaseState.COMPLETED)
        expect_equal((job.exit_code, job.signal), (0, None), "exit")
        if self.accounting:
            (row,) = rows(stage, job_id, "COMPLETED")
            expect_equal((row.exit_code, row.signal, row.cancelled_by), (0, None, None), "row")
            expect(row.submit_time and row.start_time and row.end_time, "times of the row")
            expect("batch" in [step.name for step in row.steps], "the batch step's row")

    def test_an_exit_code_is_seen(self, stage: Stage) -> None:
        job_id = stage.submit()
        started(stage, job_id)
        stage.finish(job_id, exit_code=7)
        job = ended(stage, job_id, BaseState.FAILED)
        expect_equal((job.exit_code, job.signal), (7, None), "exit")
        if self.accounting:
            rows(stage, job_id, "FAILED")
            wait_for(stage, lambda: stage.client.history([job_id])[0].exit_code == 7, 10, "exit code in accounting")

    def test_a_signal_is_seen(self, stage: Stage) -> None:
        job_id = stage.submit()
        started(stage, job_id)
        stage.finish(job_id, signal=9)
        job = ended(stage, job_id, BaseState.FAILED)
        expect_equal((job.exit_code, job.signal), (0, 9), "exit")

    def test_an_unknown_job_is_not_seen(self, stage: Stage) -> None:
        client = stage.client
        expect_equal(dict(client.observe([UNKNOWN]).jobs), {}, "snapshot")
        expect_equal(dict(client.observe([]).jobs), {}, "snapshot of nothing")
        expect_equal(client.history([UNKNOWN]), [], "history")
        expect_equal(client.steps(UNKNOWN), [], "steps")
        client.cancel(UNKNOWN)
        expect_error(JobNotFoundError, lambda: client.requeue(UNKNOWN, only_running=False))
        expect_error(JobNotFoundError, lambda: client.requeue(UNKNOWN, only_running=True))
        expect_error(JobNotFoundError, lambda: client.update_pending(UNKNOWN, exclude=""))
        expect_error(JobNotFoundError, lambda: client.excluded_nodes(UNKNOWN))
        expect_error(JobNotFoundError, lambda: client.release(UNKNOWN))
        expect_error(JobNotFoundError, lambda: client.signal_step(UNKNOWN, 0, "KILL"))

    def test_one_look_shows_all_jobs_and_only_those_asked_for(self, stage: Stage) -> None:
        first, second = stage.submit("-J", "a|b $(id) \\' ü"), stage.submit("--hold")
        started(stage, first)
        everything = stage.client.observe().jobs
        expect({first, second} <= set(everything), f"both jobs in {sorted(map(str, everything))}")
        expect_equal(set(stage.client.observe([first]).jobs), {first}, "asked for one")
        expect_equal(set(stage.client.observe([first, UNKNOWN]).jobs), {first}, "asked for one and an unknown one")
        held = everything[second]
        expect_equal((held.reason, held.begin_time, held.nodes), ("JobHeldUser", None, ""), "held job")

    def test_array_tasks_have_their_own_ids(self, stage: Stage) -> None:
        array = stage.submit("--array=0-1")
        tasks = [JobId(array.base, 0), JobId(array.base, 1)]
        for task in tasks:
            started(stage, task)
        expect_equal(sorted(stage.client.observe([array]).jobs), tasks, "tasks of the array")
        expect_equal(sorted(stage.client.observe([tasks[1]]).jobs), tasks[1:], "one task")
        stage.client.requeue(tasks[1], only_running=True)
        queued_again(stage, tasks[1])
        expect_equal(stage.client.observe([tasks[0]]).jobs[tasks[0]].restart_count, 0, "restarts of the other task")
        stage.client.cancel(array)
        ended(stage, tasks[0], BaseState.CANCELLED)
        ended(stage, tasks[1], BaseState.CANCELLED)

    def test_steps_are_listed_and_can_be_killed_alone(self, stage: Stage) -> None:
        job_id = stage.submit(behaviour=Behaviour(step=True))
        started(stage, job_id)
        wait_for(stage, lambda: set(stage.client.steps(job_id)) == {"batch", "0"}, 20, "steps batch and 0")
        stage.client.signal_step(job_id, 0, "KILL")
        wait_for(stage, lambda: stage.client.steps(job_id) == ["batch"], 20, "step 0 gone")
        expect(is_running(stage.client.observe([job_id]).jobs[job_id].state), "the job still runs")
        stage.client.signal_step(job_id, 0, "KILL")

    def test_nodes_and_their_states(self, stage: Stage) -> None:
        name = stage.nodes[0]
        (node,) = stage.client.nodes(name)
        expect_equal((node.name, node.states, node.reason), (name, frozenset({"IDLE"}), ""), "idle node")
        expect(stage.partition("urgent") in node.partitions, f"partitions {node.partitions}")
        stage.drain_node(name)
        (node,) = stage.client.nodes(name)
        expect(node.states >= {"IDLE", "DRAIN"} and node.reason, f"drained node {node}")
        stage.restore_node(name)
        expect({node.name for node in stage.client.nodes()} >= set(stage.nodes), "all nodes")
        expect_equal(stage.client.expand_nodes("n[1-2],x"), ["n1", "n2", "x"], "expanded")

    def test_capabilities(self, stage: Stage) -> None:
        can = stage.client.capabilities()
        expect(can.version >= (20, 11) and can.cluster_name, f"version and name in {can}")
        expect(can.min_job_age > timedelta(0) and can.kill_wait > timedelta(0), f"timers in {can}")
        expect(can.requeue_delay > timedelta(seconds=1), f"requeue delay in {can}")
        expect_equal((can.accounting, can.job_requeue), (self.accounting, True), "accounting and requeue")


class ActingContract(_Base):
    """What a client does to pending and running jobs."""

    def test_a_refused_submission_says_why(self, stage: Stage, tmp_path: Path) -> None:
        error = expect_error(SlurmRefusedError, lambda: stage.submit("-p", "no-such-partition"))
        expect("partition" in str(error), str(error))
        expect(not isinstance(error, JobNotFoundError), "a refused submission is no unknown job")
        expect_error(SlurmRefusedError, lambda: stage.client.submit(tmp_path / "missing.sh"))

    def test_requeue_and_choose_where_and_when(self, stage: Stage) -> None:
        job_id = stage.submit()
        before = started(stage, job_id)
        stage.client.requeue(job_id, only_running=True)
        stage.client.update_pending(job_id, start_after=timedelta(seconds=8), exclude=before.nodes)
        again = queued_again(stage, job_id)
        expect_equal(stage.client.excluded_nodes(job_id), before.nodes, "excluded nodes")
        after = started(stage, job_id, restarts=1)
        expect(after.nodes != before.nodes, f"another node than {before.nodes}")
        expect_equal(after.exit_code, None, "exit code")
        expect(after.start_time and again.begin_time and after.start_time >= again.begin_time, "not before its time")
        if self.accounting:
            first, second = rows(stage, job_id, "REQUEUED", "RUNNING")
            expect_equal((first.nodes, second.nodes), (before.nodes, after.nodes), "nodes of the rows")

    def test_requeue_of_a_job_that_is_coming_back_is_fine(self, stage: Stage) -> None:
        job_id = stage.submit(behaviour=STUBBORN)
        started(stage, job_id)
        stage.client.requeue(job_id, only_running=True)
        stage.client.requeue(job_id, only_running=True)
        stage.client.requeue(job_id, only_running=False)
        expect_equal(queued_again(stage, job_id).restart_count, 1, "restarts")
        stage.client.requeue(job_id, only_running=False)
        expect_equal(started(stage, job_id, restarts=1).restart_count, 1, "restarts")

    def test_only_running_does_not_revive_a_cancelled_job(self, stage: Stage) -> None:
        job_id = stage.submit(behaviour=STUBBORN)
        started(stage, job_id)
        stage.client.cancel(job_id)
        stage.client.requeue(job_id, only_running=True)
        expect_error(SlurmRefusedError, lambda: stage.client.update_pending(job_id, start_after=timedelta(seconds=1)))
        job = ended(stage, job_id, BaseState.CANCELLED)
        stage.client.requeue(job_id, only_running=True)
        expect_equal((job.restart_count, job.exit_code), (0, 0), "restarts and exit code")
        expect(ended(stage, job_id, BaseState.CANCELLED), "still cancelled")
        if self.accounting:
            (row,) = rows(stage, job_id, "CANCELLED")
            expect_equal(row.cancelled_by, job.user_id, "who cancelled")

    def test_a_plain_requeue_revives_an_ended_job(self, stage: Stage) -> None:
        job_id = stage.submit()
        started(stage, job_id)
        stage.finish(job_id, exit_code=3)
        ended(stage, job_id, BaseState.FAILED)
        stage.client.requeue(job_id, only_running=False)
        job = queued_again(stage, job_id)
        expect_equal((job.exit_code, job.restart_count), (None, 1), "exit code and restarts of a waiting job")
        stage.client.update_pending(job_id, start_after=timedelta(0))
        started(stage, job_id, restarts=1)

    def test_without_requeue_slurm_refuses(self, stage: Stage) -> None:
        job_id = stage.submit("--no-requeue")
        expect_equal(started(stage, job_id).requeue, False, "requeue flag")
        error = expect_error(SlurmRefusedError, lambda: stage.client.requeue(job_id, only_running=True))
        expect("disabled" in str(error), str(error))

    def test_a_running_job_cannot_be_moved(self, stage: Stage) -> None:
        job_id = stage.submit()
        started(stage, job_id)
        expect_error(SlurmRefusedError, lambda: stage.client.update_pending(job_id, exclude=stage.nodes[0]))
        expect_error(SlurmRefusedError, lambda: stage.client.update_pending(job_id, start_after=timedelta(seconds=5)))
        expect_equal(stage.client.excluded_nodes(job_id), "", "excluded nodes")

    def test_hold_and_release(self, stage: Stage) -> None:
        job_id = stage.submit("--begin=now+600")
        job = wait_for_job(stage, job_id, lambda job: job.reason == "BeginTime", "waits for its time")
        expect(is_waiting(job.state) and job.begin_time, f"waiting job {job}")
        stage.client.hold(job_id)
        stage.client.update_pending(job_id, start_after=timedelta(0))
        wait_for_job(stage, job_id, lambda job: job.reason == "JobHeldUser", "is held")
        stage.pause(3)
        expect_equal(stage.client.observe([job_id]).jobs[job_id].state.base, BaseState.PENDING, "held job")
        stage.client.release(job_id)
        started(stage, job_id)

    def test_cancel_pending_and_running_and_ended(self, stage: Stage) -> None:
        pending, running = stage.submit("--hold"), stage.submit()
        started(stage, running)
        for _ in range(2):
            for job_id in (pending, running):
                stage.client.cancel(job_id)
        for job_id in (pending, running):
            expect_equal(ended(stage, job_id, BaseState.CANCELLED).restart_count, 0, "restarts")
            stage.client.cancel(job_id)

    def test_cancel_by_root_names_root(self, stage: Stage) -> None:
        job_id = stage.submit()
        started(stage, job_id)
        stage.cancel_as_root(job_id)
        ended(stage, job_id, BaseState.CANCELLED)
        if self.accounting:
            (row,) = rows(stage, job_id, "CANCELLED")
            expect_equal(row.cancelled_by, 0, "who cancelled")

    def test_cancel_on_the_way_back_ends_the_job_and_accounting_never_says_so(self, stage: Stage) -> None:
        job_id = stage.submit(behaviour=STUBBORN)
        started(stage, job_id)
        stage.client.requeue(job_id, only_running=True)
        stage.client.cancel(job_id)
        expect_error(SlurmRefusedError, lambda: stage.client.update_pending(job_id, start_after=timedelta(seconds=1)))
        expect_equal(ended(stage, job_id, BaseState.CANCELLED).restart_count, 1, "restarts")
        if self.accounting:
            rows(stage, job_id, "REQUEUED")


class SlurmActsContract(_Base):
    """What Slurm does by itself."""

    def test_preemption_requeues(self, stage: Stage) -> None:
        job_id = stage.submit("-w", stage.nodes[0], "--exclusive")
        started(stage, job_id)
        urgent = stage.submit("-p", stage.partition("urgent"), "-w", stage.nodes[0], "--exclusive")
        job = queued_again(stage, job_id)
        expect_equal((job.restart_count, job.preempt_time), (1, None), "restarts and preempt time")
        started(stage, urgent)
        if self.accounting:
            rows(stage, job_id, "PREEMPTED", "PENDING")

    def test_preemption_with_grace_shows_only_in_preempt_time(self, stage: Stage) -> None:
        job_id = stage.submit(
            "-p", stage.partition("graced"), "-w", stage.nodes[0], "--exclusive", behaviour=Behaviour(ignores_term=True)
        )
        started(stage, job_id)
        stage.submit("-p", stage.partition("urgent"), "-w", stage.nodes[0], "--exclusive")
        job = wait_for_job(stage, job_id, lambda job: job.preempt_time is not None, "is being preempted")
        expect(is_running(job.state), f"state in grace: {job.state}")
        expect(job.end_time and job.preempt_time and job.end_time - job.preempt_time <= timedelta(seconds=40), "end")
        queued_again_after_grace = wait_for_job(
            stage, job_id, lambda job: is_waiting(job.state) and job.restart_count == 1, "came back", timeout_s=90
        )
        expect_equal(queued_again_after_grace.preempt_time, None, "preempt time")

    def test_a_lost_node_requeues(self, stage: Stage) -> None:
        job_id = stage.submit("-w", stage.nodes[1])
        started(stage, job_id)
        stage.fail_node(stage.nodes[1])
        expect_equal(queued_again(stage, job_id).restart_count, 1, "restarts")
        stage.restore_node(stage.nodes[1])
        if self.accounting:
            rows(stage, job_id, "NODE_FAIL", "PENDING")

    def test_the_time_limit_ends_the_job(self, stage: Stage) -> None:
        job_id = stage.submit("-t", "1")
        started(stage, job_id)
        job = ended(stage, job_id, BaseState.TIMEOUT, timeout_s=150)
        expect_equal((job.restart_count, job.time_limit), (0, timedelta(minutes=1)), "restarts and limit")
        stage.client.requeue(job_id, only_running=True)
        expect_equal(ended(stage, job_id, BaseState.TIMEOUT).restart_count, 0, "only_running leaves it alone")

    def test_an_ended_job_is_forgotten_but_accounting_keeps_it(self, stage: Stage) -> None:
        job_id = stage.submit()
        started(stage, job_id)
        stage.finish(job_id, exit_code=5)
        ended(stage, job_id, BaseState.FAILED)
        wait_for(stage, lambda: not stage.client.observe([job_id]).jobs, 150, f"slurmctld forgets job {job_id}")
        expect_error(JobNotFoundError, lambda: stage.client.requeue(job_id, only_running=False))
        if self.accounting:
            (row,) = rows(stage, job_id, "FAILED")
            expect_equal(row.exit_code, 5, "exit code")


class SlurmClientContract(LookingContract, ActingContract, SlurmActsContract):
    """All of it. ``accounting = False`` for a stage without it."""
