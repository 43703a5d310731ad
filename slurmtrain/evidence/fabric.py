"""InfiniBand and RoCE ports as the kernel shows them in /sys/class/infiniband."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ADAPTER = ("fw_ver", "board_id", "hca_type", "node_type", "node_guid")
_PORT = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid", "cap_mask")
_LARGEST = 4096
_MOST_PORTS = 64
# Counters that stay 0 on a healthy fabric (InfiniBand Architecture, PortCounters; the rest are the mlx5 driver's)
TROUBLE = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_rcv_constraint_errors", "port_xmit_constraint_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "local_ack_timeout_err", "req_transport_retries_exceeded", "rnr_nak_retry_err",
    "req_remote_access_errors", "resp_local_length_error", "req_cqe_error", "resp_cqe_error",
)  # fmt: skip


def read_ports(root: Path) -> dict[str, dict[str, str]]:
    """ "adapter/port" → what there is to know of it: its state, its counters as ``counters/NAME``."""
    found = {}
    for adapter in _children(root):
        about = {name: value for name in _ADAPTER if (value := _read(adapter / name))}
        for port in list(_children(adapter / "ports"))[:_MOST_PORTS]:
            values = about | {name: value for name in _PORT if (value := _read(port / name))}
            for folder in ("counters", "hw_counters"):
                for counter in _children(port / folder):
                    values[f"{folder}/{counter.name}"] = _read(counter)
            found[f"{adapter.name}/{port.name}"] = values
    return found


def find_trouble(port: dict[str, str]) -> Iterator[str]:
    """A port that is down, and errors since the counters were last cleared."""
    state = port.get("state", "")
    if state and not state.endswith("ACTIVE"):
        yield f"{state.partition(': ')[2] or state}, {port.get('phys_state', '').partition(': ')[2] or '?'}"
    counts = {key.partition("/")[2]: value for key, value in port.items() if "/" in key}
    bad = [f"{name} {counts[name]}" for name in TROUBLE if counts.get(name, "0") not in ("", "0")]
    if bad:
        yield ", ".join(bad)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    """ "" also for a counter that this adapter does not have: the kernel refuses to read it."""
    try:
        with path.open("rb") as stream:
            return stream.read(_LARGEST).decode("utf-8", "replace").strip()
    except OSError:
        return ""
