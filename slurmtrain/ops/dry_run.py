"""``submit --dry-run``: all that a run would keep is made, Slurm looks at its batch script, and nothing is written."""

from __future__ import annotations

import tempfile
from pathlib import Path

from slurmtrain.errors import SlurmRefusedError
from slurmtrain.ops.array import PreparedArray
from slurmtrain.ops.prepare import Prepared, build_files
from slurmtrain.slurm.client import SlurmClient


def try_submit(prepared: Prepared | PreparedArray, slurm: SlurmClient) -> str:
    """Slurm's answer to ``sbatch --test-only``. Raises ``SlurmRefusedError`` with its reason.

    ``SpecError`` where rules, collectors or formats of checkpoints cannot be used.
    """
    if isinstance(prepared, PreparedArray):
        one, batch = prepared.runs[0], prepared.batch
    else:
        one, batch = prepared, prepared.scripts.batch
    build_files(one)
    with tempfile.TemporaryDirectory(prefix="slurmtrain-") as folder:
        script = Path(folder) / "job.sbatch"
        script.write_text(batch, encoding="utf-8")
        try:
            return slurm.check_submit(script)
        except SlurmRefusedError as exc:
            raise SlurmRefusedError(
                f"Slurm would refuse this: {str(exc).removeprefix(f'cannot submit {script}: ')}"
            ) from exc
