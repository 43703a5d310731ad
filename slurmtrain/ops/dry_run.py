"""``submit --dry-run``: Slurm looks at the batch script and takes nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from slurmtrain.errors import SlurmRefusedError
from slurmtrain.slurm.client import SlurmClient


def check_with_slurm(batch: str, slurm: SlurmClient) -> str:
    """Slurm's answer to ``sbatch --test-only``. Raises ``SlurmRefusedError`` with its reason."""
    with tempfile.TemporaryDirectory(prefix="slurmtrain-") as folder:
        script = Path(folder) / "job.sbatch"
        script.write_text(batch, encoding="utf-8")
        try:
            return slurm.check_submit(script)
        except SlurmRefusedError as exc:
            raise SlurmRefusedError(
                f"Slurm would refuse this: {str(exc).removeprefix(f'cannot submit {script}: ')}"
            ) from exc
