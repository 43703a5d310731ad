"""Causes of the families gpu_app, gpu_hw and comm."""

from __future__ import annotations

from slurmtrain.core.taxonomy.model import Cause, node_bad, permanent, transient

GPU_APP: tuple[Cause, ...] = (
    transient(
        "cuda_illegal_access",
        "gpu_app",
        "in_place",
        "a GPU kernel accessed memory it must not",
        "Usually a bug in a kernel, sometimes a bad GPU: it is tried once more. When it comes back at the "
        "same step, run with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; when it comes back on the same node"
        " only, exclude the node (`--exclude`).",
    ),
    permanent(
        "cuda_device_assert",
        "gpu_app",
        "an assertion failed on the GPU",
        "An index or a label is out of range, so every retry fails at the same sample. The `Assertion ... "
        "failed` line names the kernel; run with CUDA_LAUNCH_BLOCKING=1 or on the CPU to find the call, and "
        "check vocabulary size, number of classes and padding values.",
    ),
    transient(
        "cuda_lib_error",
        "gpu_app",
        "in_place",
        "a CUDA library returned an error",
        "cuBLAS, cuDNN or cuFFT failed without saying more; exhausted GPU memory or a bad index can hide "
        "behind it. It is tried once more; when it comes back, lower the batch size and run with "
        "CUDA_LAUNCH_BLOCKING=1.",
    ),
)

GPU_HW: tuple[Cause, ...] = (
    node_bad(
        "gpu_ecc",
        "gpu_hw",
        "a GPU has an uncorrectable memory error",
        "The GPU reported an ECC error that it could not correct. The run is requeued without that node; give"
        " the administrators the node and the Xid, the GPU needs a reset or a row remap.",
    ),
    node_bad(
        "gpu_lost",
        "gpu_hw",
        "a GPU is lost",
        "The GPU fell off the bus or needs a reset. The run is requeued without that node; the node needs a "
        "reboot, tell the administrators.",
    ),
    node_bad(
        "gpu_nvlink",
        "gpu_hw",
        "an NVLink or NVSwitch error",
        "The link between GPUs failed. The run is requeued without that node; tell the administrators, the "
        "link or the switch needs a reset.",
    ),
    node_bad(
        "gpu_unavailable",
        "gpu_hw",
        "a GPU is missing or busy on the node",
        "The node shows fewer usable GPUs than the job was granted, or another process holds them. Check "
        "first that your script does not change CUDA_VISIBLE_DEVICES and that the job asks for GPUs "
        "(`--gres`); else the run is requeued without that node.",
    ),
    node_bad(
        "gpu_driver_fault",
        "gpu_hw",
        "the GPU driver of the node is broken",
        "Driver, GSP firmware or fabric manager of the node is not working. The run is requeued without that "
        "node; tell the administrators.",
    ),
)

COMM: tuple[Cause, ...] = (
    transient(
        "nccl_timeout",
        "comm",
        "in_place",
        "a collective operation timed out",
        "Some rank did not take part in a collective for the whole time-out, and no other error was found. It"
        " is tried again; when it comes back at the same step, look for ranks on different code paths, a slow"
        " data loader or a long save, or raise the time-out.",
    ),
    transient(
        "nccl_system_error",
        "comm",
        "in_place",
        "NCCL could not use the network between nodes",
        "A socket or system call of NCCL failed, such as a refused connection or no route. It is tried again "
        "and the unreachable peer is excluded when it happens twice. If it never worked, set "
        "NCCL_SOCKET_IFNAME to the right interface.",
        infrastructure=True,
    ),
    node_bad(
        "ib_link_error",
        "comm",
        "an InfiniBand, RoCE or EFA link failed",
        "The fabric gave up on a message: a cable, a port, a switch or the peer is gone. The run is requeued "
        "without the suspected node, the peer first; tell the administrators if the node comes up again.",
    ),
    transient(
        "peer_lost",
        "comm",
        "in_place",
        "another rank went away",
        "Only the consequence is visible: a rank or the store closed its connection, and that rank's own "
        "output is not here. It is tried again; read the logs of the other ranks first.",
    ),
    transient(
        "rendezvous_timeout",
        "comm",
        "in_place",
        "the ranks did not find each other at start-up",
        "The rendezvous, store or coordination service timed out before all ranks joined. Slow imports, a "
        "firewall, a wrong address or a missing node are the usual reasons; it is tried again. Raise the "
        "time-out if the nodes are just slow.",
    ),
    transient(
        "port_in_use",
        "comm",
        "in_place",
        "the rendezvous port is taken",
        "Another process listens on the master port, often another job on the same node. It is tried again "
        "with another port; do not fix MASTER_PORT in the script.",
    ),
    transient(
        "dns_failure",
        "comm",
        "requeue",
        "a host name cannot be resolved",
        "The name of a peer has no address on that node. It is tried again; on a repeat the node is excluded."
        " Use the names that `scontrol show hostnames` prints.",
        infrastructure=True,
    ),
    permanent(
        "comm_config",
        "comm",
        "the launcher or network set-up is wrong",
        "Ranks, devices, interface or MPI support are set up wrongly, so every retry fails the same way. "
        "Check one process per GPU, CUDA_VISIBLE_DEVICES, `srun --mpi=pmix`, NCCL_SOCKET_IFNAME, and that the"
        " launcher is not started once per task.",
    ),
    transient(
        "mpi_runtime_error",
        "comm",
        "in_place",
        "the MPI run time failed",
        "MPI, PMIx or its daemons lost contact or aborted after the start. It is tried again; a node that is "
        "named twice is excluded.",
        infrastructure=True,
    ),
)
