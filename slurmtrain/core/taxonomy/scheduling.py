"""Causes of the families scheduler and resources, and the two without a failure."""

from __future__ import annotations

from slurmtrain.core.taxonomy.model import Cause, needs_change, node_bad, nothing, transient

SCHEDULER: tuple[Cause, ...] = (
    transient(
        "time_limit",
        "scheduler",
        "requeue",
        "the wall-clock limit was reached",
        "The job used its whole time limit and Slurm ended it; that is not a failure, the run continues from "
        "its newest checkpoint and no retry budget is used. Save checkpoints often enough that little is "
        "lost, and when the run never gets past the same step within one limit, ask for more time with "
        "`--time` or for a longer warning.",
    ),
    transient(
        "preempted",
        "scheduler",
        "requeue",
        "the job was preempted or requeued by the scheduler",
        "A job of higher priority, an operator or the cloud provider took the nodes. The run continues when "
        "nodes are free again and no retry budget is used. A partition or QOS that is not preempted "
        "(`--partition`, `--qos`) avoids it.",
    ),
    node_bad(
        "node_fail",
        "scheduler",
        "Slurm lost a node",
        "A node stopped answering Slurm: it crashed, was rebooted or lost its network. The run is requeued "
        "without that node (`--exclude`). Tell the administrators when the same node comes up again; nothing "
        "in your program needs changing.",
    ),
    nothing(
        "user_cancelled",
        "scheduler",
        "a person cancelled the job",
        "Someone stopped or cancelled it; that decision is respected and nothing is restarted. "
        "`slurmtrain restart` starts the run again from its newest checkpoint.",
    ),
    Cause(
        "slurm_request_invalid",
        "scheduler",
        "permanent",
        False,
        "stop",
        "stop",
        False,
        "Slurm can never satisfy the request",
        "The resources, account, QOS or node list asked for do not exist or exceed a limit, so waiting does "
        "not help. Compare the request with `sinfo` and `sacctmgr show assoc`, and change `--nodes`, "
        "`--gres`, `--account`, `--qos` or the options of the inner srun.",
    ),
    transient(
        "slurm_launch_failed",
        "scheduler",
        "requeue",
        "Slurm could not start the processes",
        "slurmctld, slurmd, the prolog or a credential failed before your program ran. The run is requeued "
        "after a short delay; when one node is named each time, that node is excluded. If it keeps happening,"
        " give the administrators the node and the time.",
        infrastructure=True,
    ),
)

RESOURCES: tuple[Cause, ...] = (
    needs_change(
        "host_oom",
        "resources",
        "the host's memory is exhausted",
        "The processes used more RAM than the job was granted, so the kernel or the cgroup killed one. Ask "
        "for more with `--mem` or `--mem-per-gpu`, or use less: fewer data-loader workers, less prefetching, "
        "memory-mapped or streamed data.",
    ),
    transient(
        "dataloader_worker_killed",
        "resources",
        "in_place",
        "a data-loader worker was killed",
        "A worker process died of a signal and nothing says why; most often the host's memory is short. One "
        "retry is worth it; when it comes back, lower the number of workers or raise `--mem`.",
    ),
    needs_change(
        "shm_exhausted",
        "resources",
        "/dev/shm is full",  # noqa: S108
        "Workers exchange tensors through /dev/shm and it has no space left. Give the container or the job a "
        "bigger /dev/shm (`--shm-size`, a mount, or the site's option), lower the number of workers, or use "
        "the file_system sharing strategy of torch.multiprocessing.",
    ),
    needs_change(
        "resource_limit",
        "resources",
        "a process limit was reached",
        "A limit on open files, threads, processes or locked memory (`ulimit -n -u -l`) stopped the program. "
        "Raise it in the prologue of the job, lower the number of workers, or ask the administrators for "
        "`LimitMEMLOCK=infinity` in slurmd's unit.",
    ),
    needs_change(
        "cuda_oom",
        "resources",
        "the GPU's memory is exhausted",
        "The program needs more GPU memory than the device has. Lower the micro batch or the sequence length,"
        " use gradient accumulation, checkpointing, sharding or offload, or ask for bigger GPUs (`--gres`, "
        "`--constraint`). If another process holds the memory, the node is at fault and the run is requeued "
        "elsewhere.",
    ),
    needs_change(
        "disk_full",
        "resources",
        "a disk is full",
        "A write failed because the file system has no space left; a retry would fail again and could damage "
        "a checkpoint. Free space or write elsewhere (checkpoint folder, TMPDIR, cache), and keep fewer "
        "checkpoints.",
    ),
    needs_change(
        "quota_exceeded",
        "resources",
        "a disk quota is used up",
        "Your or your project's quota (bytes or number of files) is reached, often by a cache in $HOME. "
        "Delete or move files, point caches such as HF_HOME and TORCH_HOME at scratch, or ask for more quota,"
        " then `slurmtrain restart`.",
    ),
)

NONE: tuple[Cause, ...] = (
    nothing("no_failure", "none", "the job finished", "Nothing failed; alarming words in the log had no consequence."),
    transient(
        "unknown",
        "none",
        "in_place",
        "nothing says why it failed",
        "Neither Slurm nor the log tells the cause, so it is retried only a few times. Look at the last "
        "lines of each rank, run with unbuffered output (`python -u`), and add a rule file once you know the message "
        "(`slurmtrain rules`).",
    ),
)
