"""``rescue.sbatch``: the job that looks after a run whose own job has failed (see ``ops.rescue``)."""

from __future__ import annotations

from pathlib import Path

from slurmtrain.core.spec import Spec
from slurmtrain.render.quoting import escape_file_pattern, quote_argv, quote_directive

_LIKE_THE_RUN = ("partition", "account", "qos")


def build_rescue_script(spec: Spec, run_dir: Path, python: str) -> str:
    """The batch script. ``rescue_options`` come last, because sbatch takes the last of two equal options."""
    asked = [(name, getattr(spec.resources, name)) for name in _LIKE_THE_RUN]
    options = [option.partition("=") for option in spec.rescue_options]
    directives = [
        f"--job-name={quote_directive(f'{spec.name}-rescue')}",
        "--kill-on-invalid-dep=yes",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=1",
        "--mem=256M",
        "--time=5",
        *(f"--{name}={quote_directive(value)}" for name, value in asked if value is not None),
        f"--output={quote_directive(escape_file_pattern(str(run_dir)) + '/logs/rescue-%j.log')}",
        "--open-mode=append",
        *(f"{name}={quote_directive(value)}" if equals else name for name, equals, value in options),
    ]
    lines = [
        "#!/bin/bash",
        "# Starts when the run's job has ended for good, and not well. It recovers the run if nobody else did.",
        *(f"#SBATCH {directive}" for directive in directives),
        "unset LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT",
        f"exec {quote_argv([python, '-I', run_dir / 'agent.pyz', 'rescue', run_dir])}",
    ]
    return "\n".join(lines) + "\n"
