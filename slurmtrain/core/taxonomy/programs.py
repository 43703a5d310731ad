"""Causes of the families user_code and external."""

from __future__ import annotations

from slurmtrain.core.taxonomy.model import Cause, permanent, rollback, transient

USER_CODE: tuple[Cause, ...] = (
    permanent(
        "config_error",
        "user_code",
        "the configuration is wrong",
        "A flag, a key or a combination of sizes is not accepted, so every retry ends the same way. The "
        "message names it; fix the command or the configuration file and submit again.",
    ),
    permanent(
        "python_exception",
        "user_code",
        "the program raised an exception",
        "The program failed by an error in its own code or input, and would again. Read the traceback of the "
        "named rank, fix it and use `slurmtrain restart` to continue from the newest checkpoint.",
    ),
    permanent(
        "tensor_shape_error",
        "user_code",
        "shapes, types or devices of tensors do not fit",
        "An operator got tensors whose shape, dtype or device do not match. The traceback names the call; "
        "check the model's sizes, the last incomplete batch, and that all inputs are on the same device.",
    ),
    permanent(
        "ddp_usage_error",
        "user_code",
        "the ranks do not do the same thing",
        "Parameters without gradient, or ranks that call different collectives, break data parallelism at the"
        " same place each time. Use find_unused_parameters, make every rank take the same branches, and run "
        "once with TORCH_DISTRIBUTED_DEBUG=DETAIL.",
    ),
    rollback(
        "nan_loss",
        "user_code",
        "the loss became NaN or infinite",
        "Training diverged. The run goes back one checkpoint and is tried once; when it diverges again, lower"
        " the learning rate, clip gradients, use bf16 instead of fp16, or skip the bad batch.",
    ),
    transient(
        "native_crash",
        "user_code",
        "in_place",
        "native code crashed",
        "The process died of a signal in compiled code and no CUDA or NCCL error explains it. It is tried "
        "once; when it comes back, read the stack that PYTHONFAULTHANDLER=1 (set in the job) leaves in the log, and "
        "collect a core dump to find the library.",
    ),
    transient(
        "hang_no_progress",
        "user_code",
        "in_place",
        "the program stopped making progress",
        "No error, but nothing was printed or computed any more. Stacks are dumped and the run is tried "
        "again; ranks whose stack differs from the others show where it hangs. Raise the hang time-out if a "
        "step may take that long.",
    ),
)

EXTERNAL: tuple[Cause, ...] = (
    transient(
        "hub_download_failed",
        "external",
        "in_place",
        "a download from a hub or index failed",
        "The model hub or package index was unreachable, slow or limited the requests. It is tried again "
        "after a pause. Download before the job (`stage_in`) and set HF_HUB_OFFLINE=1: compute nodes often "
        "have no way out.",
    ),
    permanent(
        "auth_denied",
        "external",
        "access was refused by a service",
        "A token is missing, expired or has no right to the repository or bucket. Log in again, accept the "
        "licence of the gated model, and make sure that the token reaches the job's environment.",
    ),
    transient(
        "tracking_service_error",
        "external",
        "in_place",
        "the experiment tracker ended the run",
        "W&B, MLflow, Comet or the like failed and took the training with it. It is tried again; use the "
        "tracker's offline mode (`WANDB_MODE=offline`) and synchronise later.",
    ),
    transient(
        "license_unavailable",
        "external",
        "requeue",
        "no licence is available",
        "The licence server is unreachable or all seats are taken. The run is requeued after a delay; ask "
        "Slurm for the licence with `--licenses` so that the job waits for a free seat.",
    ),
)
