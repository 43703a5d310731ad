"""What in the reports of GPU tools is wrong with a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

_GPU = re.compile(r"GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9])$")
_VALUE = re.compile(r"(\s*)(\S.*?)\s*: (.*)$")
_LOST = re.compile(r"Unable to determine the device handle for (?:GPU)? ?([0-9A-Fa-f:.]*):? .*", re.IGNORECASE)
_STATES = {
    # field of nvidia-smi -q → what its healthy values are
    "GPU Recovery Action": ("None", "N/A"),
    "Remapping Failure Occurred": ("No", "N/A"),
    "HW Slowdown": ("Not Active", "N/A"),
    "HW Thermal Slowdown": ("Not Active", "N/A"),
    "HW Power Brake Slowdown": ("Not Active", "N/A"),
    "Fabric State": (),
}
_PENDING = {"Pending": "row remapping pending", "Pending Page Blacklist": "page retirement pending"}
_NVLINK_ERROR = re.compile(r"\s*Link (\d+): (\w[\w -]*?) Errors?: (\d+)")
_MOST = 12


def find_gpu_trouble(report: str) -> list[str]:
    """Sentences about GPUs in the output of ``nvidia-smi -q`` (of drivers 450 to 580), the first ones only."""
    return list(dict.fromkeys(_trouble(report)))[:_MOST]


def _trouble(report: str) -> Iterator[str]:
    gpu, sections = "", list[tuple[int, str]]()
    for line in report.splitlines():
        if match := _GPU.match(line):
            gpu, sections = match[1], []
            continue
        if _LOST.match(line) or "GPU is lost" in line or "requires reset" in line:
            yield " ".join(line.split())[:200]
            continue
        indent = len(line) - len(line.lstrip())
        sections = [(at, name) for at, name in sections if at < indent]
        match = _VALUE.match(line)
        if match is None:
            sections.append((indent, line.strip()))
        elif gpu:
            told = _judge([name for _, name in sections], match[2], match[3].strip())
            if told:
                yield f"GPU {gpu}: {told}"


def _judge(sections: list[str], name: str, value: str) -> str:
    healthy = _STATES.get(name)
    if healthy and value not in healthy and "ERR" not in value:
        return f"{name} {value}"
    if "Volatile" in sections and "Uncorrectable" in name and value.isdigit() and value != "0":
        return f"ECC {name} {value}"
    if value == "Yes" and name in _PENDING:
        return _PENDING[name]
    if value.startswith("[") and ("lost" in value or "reset" in value.lower()):
        return f"{name} {value}"
    return f"{name} {value}" if value == "ERR!" else ""


def find_link_trouble(report: str) -> list[str]:
    """Links with errors in the output of ``nvidia-smi nvlink -e``: replays, recoveries, CRC errors."""
    told, gpu = [], ""
    for line in report.splitlines():
        if line.startswith("GPU "):
            gpu = line.partition(":")[0]
        match = _NVLINK_ERROR.match(line)
        if match and match[3] != "0":
            told.append(f"{gpu}, NVLink {match[1]}: {match[3]} {match[2]} errors")
    return told[:_MOST]
