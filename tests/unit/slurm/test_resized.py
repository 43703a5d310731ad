"""A job that was made smaller has one row more in accounting, which is no execution."""

from __future__ import annotations

from slurmtrain.slurm.commands import SACCT_FIELDS
from slurmtrain.slurm.parse import parse_sacct


def _row(state: str, nodes: str, submit: str) -> str:
    values = {"JobID": "30", "JobIDRaw": "30", "State": state, "ExitCode": "0:0", "NodeList": nodes, "Submit": submit}
    return "|".join(values.get(name, "") for name in SACCT_FIELDS)


def test_a_resizing_row_is_no_execution() -> None:
    """As 22.05 showed a job that was shrunk, requeued and cancelled."""
    text = "\n".join(
        [_row("RESIZING", "n[1-2]", "2026-11-29T20:53:12"), _row("CANCELLED by 4242", "n1", "2026-11-29T20:53:17")]
    )
    assert [str(record.state) for record in parse_sacct(text)] == ["CANCELLED"]
