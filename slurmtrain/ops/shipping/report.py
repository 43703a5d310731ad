"""What a pass over a run's remote copy did."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmtrain.remote.model import Written


@dataclass(slots=True)
class Report:
    """Counts of objects. ``late`` are files that changed while they were read: the next pass sends them."""

    sent: int = 0
    sent_bytes: int = 0
    unchanged: int = 0
    deleted: int = 0
    late: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = False

    def add(self, written: Written) -> None:
        self.sent += 1
        self.sent_bytes += written.size
