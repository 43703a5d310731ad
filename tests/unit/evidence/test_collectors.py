"""The bundled collectors, each in its child process on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmtrain.evidence.cgroups import describe_kills, job_groups, read_group
from slurmtrain.evidence.container import describe_container
from slurmtrain.evidence.disk import NO_ANSWER, Volume, ask_volumes, find_mount
from slurmtrain.evidence.manifest import Taking
from slurmtrain.evidence.scene import Rank

Collect = Callable[..., tuple[Taking, Path]]
SECRET = "pl4nted-Secret-77"


def text_of(folder: Path) -> str:
    return "\n".join(f"{p.name}:\n{p.read_text(errors='replace')}" for p in sorted(folder.rglob("*")) if p.is_file())


# -- logs --------------------------------------------------------------------------------------------------------------


def test_last_lines_of_each_rank_of_this_launch_only(collect: Collect, tmp_path: Path) -> None:
    log = tmp_path / "train-7.log"
    old = "0: of the launch before\n"
    lines = [f"{rank:>2}: step {step}" for step in range(500) for rank in range(3)]
    bar = " 1: 10%\r20%\r 1: 30% done"
    log.write_text(
        old + "\n".join([*lines, bar, "0: [default2]:ValueError: no", "srun: error: n1: task 1: Killed"]) + "\n"
    )
    taking, folder = collect("last-lines", log_file=log, log_offset=len(old))
    shown = (folder / "train-7.txt").read_text()
    assert taking.status == "taken"
    assert "of the launch before" not in shown
    assert shown.count("step 499") == 3
    assert "step 299" not in shown.partition("step 300")[0]
    assert "=== node 0, rank 2 of it ===\nValueError: no" in shown
    assert "=== without a rank ===\nsrun: error: n1: task 1: Killed" in shown
    assert " 1: 30% done" in shown


def test_a_log_that_is_missing_or_a_fifo_is_noted(collect: Collect, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "cannot read" in collect("last-lines", log_file=tmp_path / "gone.log")[0].notes[0]
    assert "it is no regular file" in collect("last-lines", log_file=tmp_path / "fifo")[0].notes[0]


def test_error_files_are_kept_with_their_first_line(collect: Collect, tmp_path: Path) -> None:
    launch = tmp_path / "store/runs/r/attempts/000/launches/0"
    error = {"message": {"message": "ValueError: bad batch\nmore", "extraInfo": {"timestamp": "1767600000"}}}
    (launch / "error-rank-3.json").write_text(json.dumps(error))
    (launch / "error-rank-4.json").write_text("{torn")
    (launch / "error-rank-5.json").symlink_to("/etc/passwd")
    _, folder = collect("error-files")
    assert (folder / "output.txt").read_text() == "rank-3: ValueError: bad batch\nrank-4: not readable as JSON\n"
    assert sorted(p.name for p in folder.iterdir()) == ["error-rank-3.json", "error-rank-4.json", "output.txt"]


# -- the node ----------------------------------------------------------------------------------------------------------


def test_memory_processes_and_limits_of_this_very_node(collect: Collect) -> None:
    taking, folder = collect("memory", ranks=(Rank(os.getpid(), 0),))
    assert taking.status == "taken"
    assert "MemAvailable:" in (folder / "node.txt").read_text()
    _, folder = collect("limits", ranks=(Rank(os.getpid(), 5),))
    assert f"== rank 5 (process {os.getpid()})" in (folder / "limits.txt").read_text()
    assert "Max locked memory" in (folder / "limits.txt").read_text()
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    assert f"kernel.core_pattern = {pattern}" in (folder / "output.txt").read_text()
    _, folder = collect("processes")
    assert str(os.getpid()) in (folder / "ps.txt").read_text()


def test_kills_and_reached_limits_of_both_versions_are_told() -> None:
    v1 = {"memory.oom_control": "\noom_kill_disable 0\nunder_oom 0\noom_kill 2", "memory.limit_in_bytes": "1048576"}
    v1["memory.max_usage_in_bytes"] = "1048576"
    assert describe_kills(v1) == "2 processes killed for memory, all of its 1 MiB were used"
    v2 = {"memory.events": "\nlow 0\noom 1\noom_kill 1", "memory.max": "max", "memory.peak": "99", "pids.max": "100"}
    assert describe_kills(v2 | {"pids.events": "max 3"}) == (
        "1 process killed for memory, the limit of 100 processes was reached"
    )
    assert describe_kills({"memory.max": "100000000", "memory.peak": "50", "memory.events": "\noom_kill 0"}) == ""


@pytest.mark.parametrize(
    ("line", "mount", "group"),
    [
        ("6:memory:/slurm_n1/uid_7/job_60/step_1/task_0", "cgroup {} cgroup rw,memory 0 0", "slurm_n1/uid_7/job_60"),
        ("0::/a.slice/s.scope/job_60/step_1/user/task_0", "cgroup2 {} cgroup2 rw 0 0", "a.slice/s.scope/job_60"),
    ],
)  # fmt: skip
def test_groups_of_the_job_and_of_its_other_steps_are_found(tmp_path: Path, line: str, mount: str, group: str) -> None:
    root, proc = tmp_path / "cg", tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(line + "\n")
    (proc / "self" / "mounts").write_text(mount.format(root) + "\n")
    own = root / line.split(":")[2].lstrip("/")
    other = root / group / "step_0"
    for folder in (own, *own.parents, other):
        if folder.is_relative_to(root):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cgroup.procs").touch()
    (root / group / "memory.max").write_text("1048576\n")
    found = job_groups(["self"], proc)
    assert {own, other, root / group} <= set(found)
    assert read_group(root / group) == {"memory.max": "1048576"}


def test_disk_use_of_each_place_and_what_fills_shared_memory(collect: Collect, tmp_path: Path) -> None:
    segment = Path("/dev/shm") / f"st-test-{os.getpid()}"
    segment.write_bytes(b"x" * 4096)
    try:
        taking, folder = collect("disk", environ={"SCRATCH": str(tmp_path), "HOME": "relative"})
    finally:
        segment.unlink()
    shown = (folder / "output.txt").read_text()
    assert taking.status == "taken"
    for name in ("store", "checkpoints", "work_dir", "SCRATCH", "/tmp", "/dev/shm"):
        assert f"{name}: /" in shown
    assert "GiB free" in shown
    assert "checkpoints: " in shown.partition("No such file or directory")[0]
    assert segment.name in (folder / "shared-memory.txt").read_text()


def test_a_file_system_that_does_not_answer_delays_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dead = tmp_path / "nfs"
    real = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: time.sleep(60) if Path(path) == dead else real(path))
    begun = time.monotonic()
    answers = ask_volumes({"dead": dead, "alive": tmp_path, "gone": tmp_path / "no"}, 1.0)
    assert time.monotonic() - begun < 20
    assert answers["dead"] == NO_ANSWER
    assert isinstance(answers["alive"], Volume)
    assert answers["gone"] == "No such file or directory"


def test_full_disks_and_mounts() -> None:
    assert Volume(1 << 40, 1 << 20, 100, 50).is_full
    assert Volume(1 << 40, 1 << 39, 100_000, 5).is_full
    assert not Volume(1 << 40, 1 << 39, 0, 0).is_full
    mounts = "sysfs /sys sysfs rw 0 0\n/dev/sda / ext4 rw 0 0\nfiler:/x /data/my\\040x nfs4 rw 0 0\n"
    assert find_mount(Path("/data/my x/run"), mounts) == "nfs4 filer:/x on /data/my x"
    assert find_mount(Path("/database"), mounts) == "ext4 /dev/sda on /"


def test_fabric_ports_that_are_down_or_have_errors_are_named(collect: Collect, tmp_path: Path) -> None:
    for port, state, phys, errors in (("1", "4: ACTIVE", "5: LinkUp", 0), ("2", "1: DOWN", "3: Disabled", 12)):
        folder = tmp_path / "ib" / "mlx5_0" / "ports" / port
        (folder / "counters").mkdir(parents=True)
        (folder / "hw_counters").mkdir()
        (folder / "state").write_text(f"{state}\n")
        (folder / "phys_state").write_text(f"{phys}\n")
        (folder / "rate").write_text("400 Gb/sec (4X NDR)\n")
        (folder / "counters" / "symbol_error").write_text(f"{errors}\n")
        (folder / "counters" / "port_xmit_data").write_text("123456\n")
        (folder / "hw_counters" / "out_of_sequence").write_text("7\n")
    taking, folder = collect("fabric", edit=("/sys/class/infiniband", str(tmp_path / "ib")))
    assert taking.notes == ("mlx5_0/2: DOWN, Disabled", "mlx5_0/2: symbol_error 12")
    assert "counters/port_xmit_data = 123456" in (folder / "output.txt").read_text()
    assert "lo:" in (folder / "net-dev.txt").read_text()
    assert "no InfiniBand adapter" in collect("fabric", edit=("/sys/class/infiniband", "/nowhere"))[0].notes[0]


def test_lines_of_the_kernel_since_the_launch(collect: Collect, tools: Path) -> None:
    taking, folder = collect("kernel", since=time.time() - 30)
    shown = (folder / "kernel.txt").read_text()
    assert "Xid (PCI:0000:2a:00): 79" in shown
    assert "): 43," not in shown
    assert taking.notes == (
        "SXid 20034 of GPU 0000:06:00.0",
        "Xid 154 of GPU 0000:2a:00",
        "Xid 79 of GPU 0000:2a:00",
        "the kernel killed for memory: python (4712)",
        "NFS server not responding: 1 lines",
        "segmentation fault: 1 lines",
        "link down: 1 lines",
    )
    (tools / "dmesg.mode").write_text("no times")
    assert "): 43," in (collect("kernel")[1] / "kernel.txt").read_text()


def test_a_kernel_log_that_is_refused_is_looked_for_elsewhere(collect: Collect, tools: Path) -> None:
    (tools / "dmesg.mode").write_text("refused")
    (tools / "journalctl.mode").write_text(
        "2026-01-05T10:11:12+0000 n1 kernel: NVRM: Xid (PCI:0000:18:00): 31, pid=1\n"
    )
    assert collect("kernel")[0].notes == ("Xid 31 of GPU 0000:18:00",)
    (tools / "journalctl.mode").unlink()
    edit = (
        "from slurmtrain.evidence.kernel_log",
        "import slurmtrain.evidence.kernel_log as k\nk.SYSLOGS = ()\nfrom slurmtrain.evidence.kernel_log",
    )
    (note,) = collect("kernel", edit=edit)[0].notes
    assert note == (
        "the kernel's log cannot be read here (dmesg: dmesg: read kernel buffer failed: Operation not permitted; "
        "journalctl: Hint: You are currently not seeing messages from other users and the system.)"
    )
    (tools / "dmesg.mode").write_text("garbage")
    assert collect("kernel")[0].status == "taken"


# -- GPUs --------------------------------------------------------------------------------------------------------------


def test_gpus_with_trouble_are_named(collect: Collect, tools: Path) -> None:
    taking, folder = collect("nvidia-smi")
    assert taking.notes == (
        "GPU 00000000:2A:00.0: HW Slowdown Active",
        "GPU 00000000:2A:00.0: HW Thermal Slowdown Active",
        "GPU 00000000:2A:00.0: ECC DRAM Uncorrectable 2",
        "GPU 00000000:2A:00.0: row remapping pending",
        "GPU 0, NVLink 1: 17 Replay errors",
        "GPU 0, NVLink 1: 3 CRC errors",
    )
    assert {p.name for p in folder.iterdir()} >= {"query.txt", "topology.txt", "nvlink.txt", "nvlink-errors.txt"}
    assert "NV18" in (folder / "topology.txt").read_text()


def test_a_lost_gpu_and_a_missing_driver_are_told_in_their_own_words(collect: Collect, tools: Path) -> None:
    (tools / "nvidia-smi.mode").write_text("lost")
    assert (
        "Unable to determine the device handle for GPU0000:2A:00.0: Unknown Error" in collect("nvidia-smi")[0].notes[0]
    )
    (tools / "nvidia-smi.mode").write_text("no-driver")
    assert "couldn't communicate with the NVIDIA driver" in collect("nvidia-smi")[0].notes[0]


def test_a_driver_that_does_not_answer_is_asked_once(collect: Collect, tools: Path) -> None:
    (tools / "nvidia-smi.mode").write_text("hang")
    taking, _ = collect("nvidia-smi", edit=("timeout_s=9", "timeout_s=1"))
    assert taking.notes[0] == "nvidia-smi did not answer within 1 s"
    assert (tools / "nvidia-smi.calls").read_text() == "-q\n"
    left = subprocess.run(["pgrep", "-f", f"{tools}/nvidia-smi"], capture_output=True, text=True)
    assert left.stdout == ""


@pytest.mark.parametrize("mode", ["garbage", "flood"])
def test_tools_that_print_garbage_harm_nobody(collect: Collect, tools: Path, mode: str) -> None:
    (tools / "nvidia-smi.mode").write_text(mode)
    taking, folder = collect("nvidia-smi")
    assert taking.status == "taken"
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 2 << 20


# -- code and environment ----------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Jane", "-c", "user.email=j@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init")
    (folder / "train.py").write_text("lr = 0.1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "First")
    git(folder, "remote", "add", "origin", f"https://jane:{SECRET}@git.example.org/team/x.git")
    (folder / "train.py").write_text(f"lr = 0.2\nAPI_KEY = '{SECRET}'\n")
    return folder


def test_commit_changes_and_packages_without_the_secrets_in_them(collect: Collect, repository: Path) -> None:
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    taking, folder = collect("code", work_dir=repository, environ=environ)
    assert taking.status == "taken", taking.why
    shown = text_of(folder)
    assert SECRET not in shown
    assert "First" in (folder / "commit.txt").read_text()
    assert "https://***@git.example.org/team/x.git" in (folder / "remotes.txt").read_text()
    assert "+lr = 0.2" in (folder / "changes.diff").read_text()
    assert " M train.py" in (folder / "status.txt").read_text()
    assert "pytest==" in (folder / "packages.txt").read_text()


def test_nothing_that_a_repository_names_is_run(collect: Collect, repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\necho ran >> {tmp_path}/ran\ncat\n")
    trap.chmod(0o755)
    (repository / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    for key in (
        "core.fsmonitor", "diff.external", "diff.evil.command", "diff.evil.textconv", "filter.evil.clean",
        "filter.evil.process", "core.pager", "gpg.program", "core.sshCommand", "core.alternateRefsCommand",
    ):  # fmt: skip
        git(repository, "config", key, str(trap))
    git(repository, "config", "filter.evil.required", "true")
    git(repository, "config", "log.showSignature", "true")
    git(repository, "config", "status.submoduleSummary", "true")
    (repository / ".git" / "hooks" / "post-index-change").write_text(trap.read_text())
    (tmp_path / "ran").unlink(missing_ok=True)
    _, folder = collect("code", work_dir=repository)
    assert not (tmp_path / "ran").exists()
    assert "+lr = 0.2" in (folder / "changes.diff").read_text()


def test_a_huge_change_is_cut_off_and_a_plain_folder_is_noted(
    collect: Collect, repository: Path, tmp_path: Path
) -> None:
    (repository / "train.py").write_text("".join(f"line {n}\n" for n in range(300_000)))
    taking, folder = collect("code", work_dir=repository)
    assert "git diff: the first 1024 KiB are kept" in taking.notes
    assert (folder / "changes.diff").stat().st_size <= 1 << 20
    plain = tmp_path / "plain"
    plain.mkdir()
    assert f"{plain} is no git repository" in collect("code", work_dir=plain)[0].notes


def test_the_environment_its_modules_and_no_secret(collect: Collect) -> None:
    environ = {
        "WANDB_API_KEY": SECRET,
        "URL": f"https://a:{SECRET}@h/",
        "LOADEDMODULES": "gcc/13:cuda/12.4",
        "LR": "0.1",
    }
    _, folder = collect("environment", environ=environ)
    assert (folder / "environment.txt").read_text() == (
        "LOADEDMODULES=gcc/13:cuda/12.4\nLR=0.1\nURL=https://***@h/\nWANDB_API_KEY=***\n"
    )
    assert (folder / "modules.txt").read_text() == "gcc/13\ncuda/12.4\n"


def test_containers_of_the_usual_kinds_are_recognized(tmp_path: Path) -> None:
    assert describe_container({"PATH": "/bin"}, (), tmp_path) == {}
    image = tmp_path / "torch.sif"
    image.write_bytes(
        b"#!/usr/bin/env run-singularity\n\0" + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(range(16)) + b"x" * 99
    )
    found = describe_container({"APPTAINER_CONTAINER": str(image), "APPTAINER_NAME": "torch.sif"}, (), tmp_path)
    assert found["image"]["sif_id"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert found["image"]["bytes"] == image.stat().st_size
    pyxis = {"SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image": "nvcr.io#nvidia/pytorch:24.05-py3"}
    assert describe_container(pyxis, (), tmp_path) == {"environment": pyxis}
    (tmp_path / ".dockerenv").touch()
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(
        f"1 2 8:1 /var/lib/docker/containers/{'ab' * 32}/hostname /etc/hostname rw"
    )
    assert describe_container({}, (), tmp_path) == {"runtime": "docker", "os": "", "container_id": "ab" * 32} or (
        describe_container({}, (), tmp_path) == {"runtime": "docker", "container_id": "ab" * 32}
    )
