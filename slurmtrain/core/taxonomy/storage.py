"""Causes of the families storage and environment."""

from __future__ import annotations

from slurmtrain.core.taxonomy.model import Cause, permanent, rollback, transient

STORAGE: tuple[Cause, ...] = (
    transient(
        "fs_io_error",
        "storage",
        "requeue",
        "a file system failed",
        "A network file system or disk returned an input/output error, a stale handle or a missing mount. The"
        " run is requeued after a delay, without the node if only that node sees it; tell the administrators "
        "when it lasts.",
        infrastructure=True,
    ),
    transient(
        "remote_storage_error",
        "storage",
        "in_place",
        "the object store failed",
        "S3, GCS, Azure or HDFS was unreachable, throttled or broke a transfer after its own retries. It is "
        "tried again after a pause; copy data to the cluster before the training (`stage_in`) if it happens "
        "often.",
    ),
    rollback(
        "checkpoint_corrupt",
        "storage",
        "a checkpoint is damaged",
        "The newest checkpoint is truncated or unreadable, most often because a save was interrupted. It is "
        "set aside and the run continues from the one before. Write checkpoints to a temporary name and "
        "rename them when they are complete.",
    ),
    permanent(
        "checkpoint_mismatch",
        "storage",
        "the checkpoint does not fit the model",
        "The checkpoint is readable but was made by another model, parallel layout or version. Start from the"
        " right one, convert it, or give the changed model a checkpoint folder of its own.",
    ),
    permanent(
        "data_missing",
        "storage",
        "a file or folder does not exist",
        "A dataset, tokenizer, index or checkpoint path is not there as the job sees it. Check spelling, "
        "relative paths, and that the folder is mounted on the compute nodes and in the container.",
    ),
    permanent(
        "data_corrupt",
        "storage",
        "a piece of data cannot be decoded",
        "A sample, record or shard is damaged, so every pass over it fails. Fetch or rebuild the named file, "
        "or let the data set skip it.",
    ),
    permanent(
        "permission_denied",
        "storage",
        "access to a path is refused",
        "The file system refuses access: wrong owner, mode or a read-only mount. Fix the permissions or write"
        " somewhere you own.",
    ),
)

ENVIRONMENT: tuple[Cause, ...] = (
    permanent(
        "container_start_failed",
        "environment",
        "the container cannot be started",
        "enroot, pyxis, apptainer or docker refused to start the container. Check the image, its mounts and "
        "its entry point by hand on a compute node; when only one node refuses, exclude it (`--exclude`) and "
        "tell the administrators.",
    ),
    transient(
        "container_pull_failed",
        "environment",
        "requeue",
        "the container image cannot be fetched",
        "The registry limited, refused or lost the download. It is tried again after a pause. Import the "
        "image once to a file on shared storage (`enroot import`, `apptainer pull`) and start the job from "
        "that file.",
    ),
    permanent(
        "import_error",
        "environment",
        "a Python module or name is missing",
        "The Python environment of the job lacks a module or has the wrong version of it. Activate the right "
        "environment in the job's setup commands and install what is missing there.",
    ),
    permanent(
        "shared_lib_missing",
        "environment",
        "a shared library is missing or does not fit",
        "A compiled package needs a library or a version of it that the node does not have. Load the right "
        "modules, rebuild the package for this system, or use a container.",
    ),
    permanent(
        "extension_build_failed",
        "environment",
        "compiling an extension failed",
        "A CUDA or C++ extension, a Triton kernel or torch.compile could not be built at run time. Read the "
        "first compiler error, load the matching compiler and CUDA toolkit, or build the extension once "
        "before the job.",
    ),
    permanent(
        "cuda_version_mismatch",
        "environment",
        "driver, toolkit or GPU architecture do not fit together",
        "The program was built for another driver, CUDA version or GPU type. Install the build that fits the "
        "cluster's driver, or ask for other GPUs with `--constraint` or `--gres`.",
    ),
    permanent(
        "command_not_found",
        "environment",
        "a command cannot be run",
        "The job calls a program that does not exist on the node or is not executable. Use absolute "
        "paths, load the modules in the job's setup commands, and check the file's mode and first line.",
    ),
    Cause(
        "illegal_instruction",
        "environment",
        "needs-change",
        True,
        "requeue-exclude-node",
        "requeue_exclude",
        False,
        "the program was built for another CPU",
        "A binary uses instructions that this node's CPU does not have. The run is requeued once on another "
        "node; rebuild the program for the oldest CPU of the partition or ask for the right one with "
        "`--constraint`.",
    ),
)
