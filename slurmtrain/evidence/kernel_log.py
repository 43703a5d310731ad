"""The kernel's log, from whichever of its readers answers: dmesg, the journal, the files of syslog."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path

from slurmtrain.evidence.bounded import Output

SYSLOGS = (Path("/var/log/kern.log"), Path("/var/log/messages"), Path("/var/log/syslog"))
_MOST_LINES, _MAX_LINE = 5000, 1000
_WITHOUT_TIMES = 500  # lines of a log without times that are kept
_TAIL = 4 << 20
_DMESG_TIME = re.compile(r"(?:<\d+>)?\[ *(\d+)\.(\d+)\] ?(.*)")
_SYSLOG_TIME = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d")
# "NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python, GPU has fallen off the bus."
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)")
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)")
_OOM = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process (\d+) \(([^)]*)\)")
_OTHERS = {
    "machine check": re.compile(r"mce: \[Hardware Error\]|Machine check events logged"),
    "uncorrectable memory error": re.compile(r"EDAC .* UE |uncorrected.{0,40}memory error", re.IGNORECASE),
    "PCIe error": re.compile(r"AER: .*(?:Uncorrected|Fatal)|pcieport .* error", re.IGNORECASE),
    "NVMe or disk error": re.compile(r"I/O error, dev|nvme\d.* (?:timeout|controller is down)|Buffer I/O error"),
    "Lustre error": re.compile(r"LustreError"),
    "NFS server not responding": re.compile(r"nfs: server \S+ not responding"),
    "task blocked for long": re.compile(r"task \S+ blocked for more than \d+ seconds"),
    "segmentation fault": re.compile(r"segfault at [0-9a-f]+ ip|traps: .* (?:general protection|trap)"),
    "link down": re.compile(r"(?:mlx5_core|ib\d|mlx4).*link (?:is )?down", re.IGNORECASE),
    "AMD GPU fault": re.compile(r"amdgpu .*(?:GPU fault|ring .* timeout|GPU reset|RAS)"),
}

Run = Callable[..., Output]


def read_kernel_log(since: float, run: Run, note: Callable[[str], None]) -> list[str]:
    """Lines since ``since`` (seconds since the epoch), with times where known. Notes why there is none."""
    refused: list[str] = []
    for read in (_dmesg, _journal):
        lines = read(since, run, refused)
        if lines is not None:
            return lines[-_MOST_LINES:]
    for path in SYSLOGS:
        try:
            return _syslog(path, since)[-_MOST_LINES:]
        except FileNotFoundError:
            continue
        except OSError as exc:
            refused.append(f"{path}: {exc.strerror}")
    note(f"the kernel's log cannot be read here ({'; '.join(refused)})")
    return []


def _dmesg(since: float, run: Run, refused: list[str]) -> list[str] | None:
    """Its plain output, the same in every version: ``[12345.678901] text``, seconds since the node was started."""
    done = run("dmesg", timeout_s=3, max_bytes=16 << 20)
    if not done.ok and not done.truncated:
        refused.append(f"dmesg: {_reason(done)}")
        return None
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return _since(done.stdout.splitlines(), since, booted)


def _since(lines: Sequence[str], since: float, booted: float) -> list[str]:
    kept: list[str] = []
    timed = False
    for line in lines:
        match = _DMESG_TIME.match(line)
        if match:
            timed = True
            at = booted + float(f"{match[1]}.{match[2]}")
            if at >= since:
                kept.append(f"{_iso(at)} {match[3]}"[:_MAX_LINE])
        elif timed and kept and line.strip():
            kept.append(line[:_MAX_LINE])  # the rest of a message of several lines
    return kept if timed else [line[:_MAX_LINE] for line in lines[-_WITHOUT_TIMES:]]


def _journal(since: float, run: Run, refused: list[str]) -> list[str] | None:
    done = run(
        "journalctl", "-k", "-q", "--no-pager", "-o", "short-iso", f"--since=@{since:.0f}", timeout_s=3,
        max_bytes=8 << 20,
    )  # fmt: skip
    if not done.ok or not done.stdout.strip():
        refused.append(f"journalctl: {_reason(done) if not done.ok else 'it shows no line of the kernel'}")
        return None
    return [line[:_MAX_LINE] for line in done.stdout.splitlines()]


def _syslog(path: Path, since: float) -> list[str]:
    """Lines of ``kern.log`` since then; those whose time cannot be read stay."""
    with path.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
        lines = stream.read(_TAIL).decode("utf-8", "replace").splitlines()
    kernel = [line[:_MAX_LINE] for line in lines if path.name == "kern.log" or " kernel: " in line]
    return [line for line in kernel if (at := _syslog_time(line)) is None or at >= since]


def _syslog_time(line: str) -> float | None:
    """``2026-01-02T03:04:05.678901+01:00`` or, of this year or the last one, ``Jan  2 03:04:05``."""
    try:
        if line[:1].isdigit():
            return datetime.fromisoformat(line.split(" ", 1)[0].replace("Z", "+00:00")).timestamp()
        if _SYSLOG_TIME.match(line):
            year = datetime.now().astimezone().year
            at = datetime.strptime(f"{year} {line[:15]}", "%Y %b %d %H:%M:%S").astimezone().timestamp()
            return at if at <= time.time() + 86400 else at - 365 * 86400
    except ValueError:
        return None
    return None


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")


def _reason(done: Output) -> str:
    return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"it ended with {done.returncode}"


def summarize(lines: Iterable[str]) -> list[str]:
    """A sentence for each kind of trouble, the GPUs' first."""
    xids: Counter[tuple[str, str, str]] = Counter()
    others: Counter[str] = Counter()
    killed = []
    for line in lines:
        for kind, pattern in (("Xid", _XID), ("SXid", _SXID)):
            if match := pattern.search(line):
                xids[(kind, match[2], match[1])] += 1
                break
        if match := _OOM.search(line):
            killed.append(f"{match[2]} ({match[1]})")
        for name, pattern in _OTHERS.items():
            others[name] += bool(pattern.search(line))
    told = [
        f"{kind} {code} of GPU {pci}" + (f", {count} times" if count > 1 else "")
        for (kind, code, pci), count in sorted(xids.items())
    ]
    if killed:
        told.append(f"the kernel killed for memory: {', '.join(killed[:5])}{' …' if len(killed) > 5 else ''}")
    return told + [f"{name}: {count} lines" for name, count in others.items() if count]
