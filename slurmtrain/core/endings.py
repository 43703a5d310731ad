"""Every way in which a launch, an attempt or a job ends, who decides about it, and what follows.

``docs/ownership.md`` is made from this table, each row names the live test that shows it, and a test checks each row
against the rules of ``core.ownership``, by which agent, gate and watcher act.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurmtrain.core.ownership import Owner

_RECOVERY, _ATTACKS = "test_recovery.py", "test_attacks.py"
_LOSS, _HANDS, _SLURM = "test_ownership.py", "test_ownership_hands.py", "test_ownership_slurm.py"


@dataclass(frozen=True, slots=True)
class Row:
    """``state`` is Slurm's word when the decision is due ("" where it has forgotten the job); ``later`` says that the
    word is about a later execution, ``requeue`` that Slurm may requeue the job. ``test`` is ``file::function`` below
    tests/live."""

    key: str
    group: str
    what: str
    alive: str
    state: str
    owner: Owner
    follows: str
    test: str
    later: bool = False
    requeue: bool = True


_LAUNCH, _PLACES, _TAKEN, _HAND, _OVER = (
    "A launch ends",
    "Something in between dies",
    "Slurm takes the job away",
    "Somebody has a hand in it",
    "The job is over, or was never there",
)

ROWS: tuple[Row, ...] = (
    Row("success", _LAUNCH, "the training exits 0 and nobody had asked it to stop", "agent", "RUNNING", Owner.AGENT,
        "the run is Completed", f"{_RECOVERY}::test_a_training_that_ends_well_is_completed"),
    Row("primary", _LAUNCH, "`success: primary`, and rank 0 exits 0", "other ranks, agent", "RUNNING", Owner.AGENT,
        "the others are ended with grace; Completed", f"{_ATTACKS}::test_the_primary_ends_the_others_with_grace"),
    Row("rank-fails", _LAUNCH, "a rank crashes or exits with a code", "other ranks, srun, agent", "RUNNING",
        Owner.AGENT, "srun ends the others; restart in place, or what the ladder says for the cause",
        f"{_RECOVERY}::test_fail_restart_in_place_complete"),
    Row("rank-killed", _LAUNCH, "SIGKILL of a rank", "other ranks, srun, agent", "RUNNING", Owner.AGENT,
        "restart in place", f"{_LOSS}::test_a_killed_rank_costs_one_launch"),
    Row("permanent", _LAUNCH, "an error that no retry can cure", "agent", "RUNNING", Owner.AGENT,
        "the run is Failed, the nodes are free at once",
        f"{_RECOVERY}::test_a_permanent_error_is_launched_once_and_frees_the_nodes"),
    Row("oom-step", _LAUNCH, "the kernel kills a rank: memory limit of the step", "other ranks, srun, agent", "RUNNING",
        Owner.AGENT, "the run is Failed: no retry gives it more memory",
        f"{_LOSS}::test_out_of_memory_in_a_step_is_the_agents_decision"),
    Row("time-limit", _LAUNCH, "the time limit is near", "ranks, agent", "RUNNING", Owner.AGENT,
        "the training saves and leaves, or is ended; requeue before Slurm's end, no budget",
        f"{_RECOVERY}::test_the_time_limit_is_continued"),
    Row("preempt-grace", _LAUNCH, "preemption with grace (squeue goes on saying RUNNING)", "ranks, agent", "RUNNING",
        Owner.AGENT, "the training saves and leaves; requeue, no budget",
        f"{_RECOVERY}::test_preemption_is_continued_without_a_budget"),
    Row("stop", _LAUNCH, "`slurmtrain stop`, or the file `stop` in the run directory", "ranks, agent", "RUNNING",
        Owner.AGENT,
        "the training saves and leaves; Stopped",
        "test_commands.py::test_a_running_training_saves_and_stops_and_stays_stopped"),
    Row("stop-colleague", _LAUNCH, "somebody else's file in `stop.folder`", "ranks, agent", "RUNNING", Owner.AGENT,
        "the training saves and leaves; Stopped, and the journal says whose file it was",
        f"{_HANDS}::test_a_colleague_stops_a_run_by_a_file"),
    Row("srun-killed", _PLACES, "SIGKILL of srun", "ranks, slurmstepd, agent", "RUNNING", Owner.AGENT,
        "its step is ended on all nodes first, then restart in place",
        f"{_ATTACKS}::test_a_killed_srun_does_not_leave_its_ranks_beside_the_next_launch"),
    Row("stepd-killed", _PLACES, "SIGKILL of the training's slurmstepd on a node", "ranks, srun, agent", "RUNNING",
        Owner.AGENT, "the companion tells; what is left is ended, and a requeue frees what Slurm holds for the step",
        f"{_LOSS}::test_a_killed_stepd_of_the_training"),
    Row("companion-srun-killed", _PLACES, "SIGKILL of the companions' srun", "everything else", "RUNNING",
        Owner.AGENT, "nothing to decide: the companions are started again, the training goes on",
        f"{_LOSS}::test_killed_companions_come_back_and_the_training_does_not_notice"),
    Row("companion-killed", _PLACES, "SIGKILL of the companion on one node", "everything else", "RUNNING",
        Owner.AGENT, "nothing to decide: it is started again, the training goes on",
        f"{_LOSS}::test_killed_companions_come_back_and_the_training_does_not_notice"),
    Row("agent-killed", _PLACES, "SIGKILL of the agent", "ranks, srun, batch script", "RUNNING", Owner.AGENT,
        "the batch script starts the next agent, which ends the launch and restarts in place",
        f"{_ATTACKS}::test_a_killed_agent_leaves_no_second_training_and_no_second_companions"),
    Row("agent-killed-decided", _PLACES, "SIGKILL of the agent between decision and act", "batch script", "RUNNING",
        Owner.AGENT, "the next agent carries out what was decided",
        f"{_ATTACKS}::test_an_agent_killed_between_its_decision_and_the_requeue"),
    Row("agent-killed-often", _PLACES, "every agent that the script starts is killed", "batch script", "FAILED",
        Owner.WATCHER, "the script ends; the watcher requeues the job",
        f"{_LOSS}::test_when_every_agent_is_killed_the_watcher_decides"),
    Row("agent-cannot-start", _PLACES, "the agent cannot start at all", "batch script, ranks", "FAILED",
        Owner.WATCHER, "the script runs the training once and records its end; the watcher requeues",
        f"{_RECOVERY}::test_without_the_agent_the_training_runs_all_the_same"),
    Row("store-refuses", _PLACES, "nothing can be written in the run directory", "batch script, agent, ranks",
        "COMPLETED", Owner.WATCHER,
        "the training runs once, nobody inside decides; the watcher does, from Slurm's facts",
        f"{_ATTACKS}::test_a_store_in_which_nothing_can_be_claimed_trains_once_and_is_resolved_later"),
    Row("script-killed", _PLACES, "SIGKILL of the batch script", "agent, ranks, until Slurm ends them", "FAILED",
        Owner.WATCHER, "requeue of the same job", f"{_LOSS}::test_a_killed_batch_script_is_the_watchers_decision"),
    Row("batch-stepd-killed", _PLACES, "SIGKILL of the batch script's slurmstepd", "batch script, agent, ranks",
        "PENDING", Owner.GATE, "Slurm notices late and queues the job again: goes on, or has finished by then",
        f"{_LOSS}::test_a_killed_stepd_of_the_batch_script", later=True),
    Row("oom-batch", _PLACES, "the kernel kills in the batch script's memory limit", "agent", "RUNNING", Owner.AGENT,
        "a launch that failed; Slurm may call the whole job OUT_OF_MEMORY in the end, which undoes no decision",
        f"{_LOSS}::test_out_of_memory_beside_the_agent_undoes_no_decision"),
    Row("slurmd-restarted", _PLACES, "slurmd is killed and comes back before its time-out", "everything else",
        "RUNNING", Owner.AGENT, "nothing to decide: the training goes on",
        f"{_LOSS}::test_a_slurmd_that_comes_back_in_time_ends_nothing"),
    Row("slurmctld-hangs", _PLACES, "slurmctld hangs while a decision is due", "everything else", "RUNNING",
        Owner.AGENT, "the agent waits for its word, up to ten minutes, then decides",
        f"{_ATTACKS}::test_slurmctld_is_silent_when_a_launch_ends"),
    Row("slurmctld-killed", _PLACES, "slurmctld is killed while a decision is due, and starts again",
        "everything else", "RUNNING", Owner.AGENT, "as above",
        f"{_LOSS}::test_slurmctld_is_killed_while_a_decision_is_due"),
    Row("slurmdbd-killed", _PLACES, "slurmdbd is away", "everything else", "RUNNING", Owner.AGENT,
        "nothing inside a job asks it for its own launches", f"{_LOSS}::test_without_slurmdbd_a_launch_is_restarted"),
    Row("preempt", _TAKEN, "preemption without grace", "ranks, until KillWait", "PENDING", Owner.GATE,
        "goes on from the newest checkpoint, no budget",
        f"{_RECOVERY}::test_preemption_is_continued_without_a_budget", later=True),
    Row("preempt-no-requeue", _TAKEN, "preemption of a job that Slurm may not requeue", "nothing", "PREEMPTED",
        Owner.WATCHER, "a new job of the same run, no budget",
        f"{_SLURM}::test_preempted_without_requeue_goes_on_as_a_new_job", requeue=False),
    Row("node-lost", _TAKEN, "a whole node is lost", "ranks on other nodes, agent or not", "PENDING", Owner.GATE,
        "goes on elsewhere, infrastructure budget",
        f"{_RECOVERY}::test_a_node_killed_in_mid_run_and_the_run_finished_elsewhere", later=True),
    Row("batch-host-lost", _TAKEN, "the node of the batch script is lost", "ranks on other nodes", "PENDING",
        Owner.GATE, "goes on elsewhere, infrastructure budget", f"{_SLURM}::test_the_batch_host_is_lost", later=True),
    Row("slurmd-killed", _TAKEN, "slurmd is killed and stays away", "everything on its node", "PENDING", Owner.GATE,
        "goes on elsewhere; what is left of the old attempt ends itself within two heartbeats",
        f"{_ATTACKS}::test_a_lost_nodes_ranks_do_not_train_beside_the_next_attempt", later=True),
    Row("node-down", _TAKEN, "an administrator sets a node down", "ranks, until KillWait", "PENDING", Owner.GATE,
        "goes on elsewhere, infrastructure budget", f"{_SLURM}::test_a_node_that_an_administrator_sets_down",
        later=True),
    Row("node-drains", _TAKEN, "a node drains, or a maintenance reservation comes", "everything", "RUNNING",
        Owner.AGENT, "the training saves and leaves in time; requeue, no budget",
        "test_wanted_back.py::test_a_draining_node_is_left_with_a_checkpoint"),
    Row("timeout", _TAKEN, "the time limit passes while the agent is frozen or deaf", "nothing", "TIMEOUT",
        Owner.WATCHER, "requeue, no budget", f"{_SLURM}::test_a_frozen_agent_lets_the_time_limit_pass"),
    Row("node-fail-no-requeue", _TAKEN, "a node is lost, and Slurm may not requeue the job", "nothing", "NODE_FAIL",
        Owner.WATCHER, "a new job of the same run", f"{_SLURM}::test_node_fail_without_requeue_goes_on_as_a_new_job",
        requeue=False),
    Row("prolog-fails", _TAKEN, "the site's prolog fails on a node", "nothing", "REQUEUE_HOLD", Owner.PERSON,
        "Slurm drains the node and holds the job; once released it goes on",
        f"{_SLURM}::test_a_prolog_that_fails_holds_the_job_until_it_is_released"),
    Row("boot-fail", _TAKEN, "a node cannot be booted as the job wants it, and Slurm may not requeue the job",
        "nothing", "BOOT_FAIL", Owner.WATCHER, "a new job of the same run",
        f"{_SLURM}::test_boot_fail_without_requeue_goes_on_as_a_new_job", requeue=False),
    Row("suspended", _HAND, "`scontrol suspend`, later `resume`", "everything, stopped", "SUSPENDED", Owner.NOBODY,
        "nothing: the training goes on where it stood", f"{_HANDS}::test_suspended_and_resumed"),
    Row("resized", _HAND, "the job is made smaller by hand", "ranks on the nodes that stay", "RUNNING", Owner.AGENT,
        "requeue, which gives it back its size; no budget", f"{_HANDS}::test_a_job_that_is_made_smaller"),
    Row("requeue-user", _HAND, "`scontrol requeue` by its owner", "ranks, until KillWait", "PENDING", Owner.GATE,
        "goes on, no budget", f"{_ATTACKS}::test_a_requeue_by_hand_goes_on_without_a_budget", later=True),
    Row("requeue-admin", _HAND, "`scontrol requeue` by an administrator", "ranks, until KillWait", "PENDING",
        Owner.GATE, "goes on, no budget", f"{_HANDS}::test_a_requeue_by_an_administrator", later=True),
    Row("requeue-hold", _HAND, "`scontrol requeuehold` by its owner or an administrator", "ranks, until KillWait",
        "REQUEUE_HOLD", Owner.PERSON, "waits until it is released, then goes on, no budget",
        f"{_HANDS}::test_a_job_that_is_requeued_and_held"),
    Row("special-exit", _HAND, "`scontrol requeuehold State=SpecialExit`", "ranks, until KillWait", "SPECIAL_EXIT",
        Owner.PERSON, "waits until it is released, then goes on, no budget",
        f"{_HANDS}::test_a_job_that_is_requeued_and_held"),
    Row("held", _HAND, "`scontrol hold` while it waits, by its owner or an administrator", "nothing yet", "PENDING",
        Owner.GATE, "waits until it is released; nobody here releases it",
        f"{_HANDS}::test_a_job_held_while_it_waits"),
    Row("limit-moved", _HAND, "the time limit is moved by hand", "everything", "RUNNING", Owner.AGENT,
        "nothing: the agent asks once more before the end is near",
        f"{_ATTACKS}::test_a_moved_time_limit_is_noticed"),
    Row("requeue-forbidden", _HAND, "requeue is switched off by hand, then the launch fails", "agent", "FAILED",
        Owner.WATCHER, "a new job of the same run", f"{_HANDS}::test_requeue_switched_off_by_hand", requeue=False),
    Row("cancelled-running", _HAND, "`scancel` by its owner while it runs", "ranks, until KillWait", "CANCELLED",
        Owner.WATCHER, "the run is Stopped", f"{_RECOVERY}::test_a_cancelled_run_stays_cancelled"),
    Row("cancelled-admin", _HAND, "`scancel` by somebody else", "ranks, until KillWait", "CANCELLED", Owner.WATCHER,
        "the run is Terminated", f"{_HANDS}::test_cancelled_by_an_administrator"),
    Row("cancelled-waiting", _HAND, "`scancel` while it waits", "nothing", "CANCELLED", Owner.WATCHER,
        "the run is Stopped", f"{_HANDS}::test_cancelled_in_the_queue"),
    Row("cancelled-completing", _HAND, "`scancel` while a requeue completes, or at any other moment", "anything",
        "COMPLETING", Owner.NOBODY, "the job stays cancelled",
        "test_cancel.py::test_scancel_at_random_moments_stays_cancelled"),
    Row("second-job", _HAND, "the batch script is submitted a second time by hand", "the first job", "RUNNING",
        Owner.AGENT, "the second job ends itself at its gate", f"{_HANDS}::test_a_second_job_of_the_run_ends_itself"),
    Row("deadline", _OVER, "`--deadline` passes while the job waits", "nothing", "DEADLINE", Owner.WATCHER,
        "the run is Failed", f"{_SLURM}::test_a_deadline_that_passes_in_the_queue"),
    Row("purged", _OVER, "the script is dead and slurmctld has forgotten the job", "nothing", "", Owner.WATCHER,
        "a new job of the same run", f"{_RECOVERY}::test_a_purged_job_is_still_resolved"),
    Row("two-watchers", _OVER, "several watchers find the same end", "watchers", "", Owner.WATCHER,
        "one of them makes one new job", f"{_ATTACKS}::test_three_watchers_at_once_make_one_new_job"),
    Row("done-again", _OVER, "Slurm starts a finished job once more", "agent", "PENDING", Owner.GATE,
        "the gate sees the done-marker and ends the execution",
        f"{_HANDS}::test_a_finished_job_that_is_started_again", later=True),
    Row("site-requeues", _OVER, "the exit code is listed in RequeueExit or RequeueExitHold", "nothing", "FAILED",
        Owner.WATCHER, "cannot happen: the script ends with another code",
        f"{_ATTACKS}::test_exit_codes_by_which_slurm_requeues_are_not_used"),
    Row("revoked", _OVER, "another cluster of a federation started the job", "everything, elsewhere", "REVOKED",
        Owner.NOBODY, "nothing: squeue's list and accounting of the federation tell how it ends there",
        "test_federation.py::test_a_run_that_another_cluster_of_the_federation_runs"),
)  # fmt: skip
