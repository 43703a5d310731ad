"""Lines near the end of a log that no rule explains and that a person would look at first."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurmtrain.core.findings import Findings

MOST = 3
_ALARMING = re.compile(
    r"(?i)\b(?:error|fatal|fail(?:ed|ure|s)?|abort(?:ed|ing)?|exception|panic|denied|cannot|could not|unable|invalid"
    r"|not found|missing|killed|refused|timed? ?out|corrupt\w*)\b"
)


def find_unexplained(logs: Sequence[Findings]) -> list[tuple[str, int, str]]:
    """(file, line, text) of the first alarming lines of the last forty, or of the last lines where none alarms."""
    lines = [(log.name, number, text) for log in logs for number, text in log.tail if text.strip()]
    alarming = [line for line in lines if _ALARMING.search(line[2])]
    return alarming[:MOST] or lines[-MOST:]
