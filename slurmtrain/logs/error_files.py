"""torchelastic's error files: what a rank's exception was, with its time, written by the rank itself.

A program decorated with ``@record`` writes JSON to the file that ``TORCHELASTIC_ERROR_FILE`` names; launches name one
for each rank (``error-rank-3.json``), with torchrun one for each node (``error-node-1.json``: its first failure).
"""

from __future__ import annotations

import stat
from pathlib import Path

from slurmtrain.core.findings import Findings
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.rank_names import rank_of_file
from slurmtrain.logs.scan import scan_file

MOST_FILES = 4_096
LARGEST = 1 << 20


def scan_error_files(folder: Path, rules: RuleSet) -> list[Findings]:
    """The findings of each readable error file of a launch; none where there is no such folder."""
    found = []
    for path in sorted(folder.glob("error-*.json"))[:MOST_FILES]:
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= LARGEST:
                continue
            findings = scan_file(path, rules)
        except OSError:
            continue
        findings.file_rank = rank_of_file(path, folder)
        for item in findings.findings:
            item.rank = findings.file_rank if item.rank is None else item.rank
        if findings.findings:
            found.append(findings)
    return found
