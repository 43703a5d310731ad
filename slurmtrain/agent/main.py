"""Entry point of ``agent.pyz``: ``attempt RUN_DIR`` in the batch script, ``companion RUN_DIR N`` in the step beside,
``release SINCE`` in a short step between two launches, ``scene`` beside either of the first two with a request on its
input, ``rescue RUN_DIR`` in the job that Slurm starts when the run's own has failed."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path

from slurmtrain.agent.job import read_components, read_job_context
from slurmtrain.agent.say import say
from slurmtrain.errors import SlurmtrainError
from slurmtrain.store.rundir import RunDir


def main(argv: list[str] | None = None) -> int:
    """Exit code of the process; see the hand-shake in ``templates/train.sbatch.j2``."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) == 2 and arguments[0] == "attempt":
        return _attempt(Path(arguments[1]))
    if len(arguments) == 3 and arguments[0] == "companion" and arguments[2].isdigit():
        from slurmtrain.agent.companion import run_companion  # a companion on each node loads nothing else

        return run_companion(Path(arguments[1]), int(arguments[2]), os.environ)
    if len(arguments) == 2 and arguments[0] == "rescue":
        return _rescue(Path(arguments[1]))
    if len(arguments) == 2 and arguments[0] == "release" and arguments[1].isdigit():
        from slurmtrain.agent.releasing import release_here

        return release_here(float(arguments[1]))
    if arguments == ["scene"]:
        from slurmtrain.evidence.process import run_scene

        return run_scene()
    say("usage: agent.pyz attempt RUN_DIR | companion RUN_DIR ATTEMPT | release SINCE | scene | rescue RUN_DIR")
    return 2


def _attempt(run_dir: Path) -> int:
    from slurmtrain.agent.attempt import run_attempt
    from slurmtrain.hosts.local import LocalHost
    from slurmtrain.slurm.cli_client import CliSlurmClient
    from slurmtrain.slurm.het_client import HetSlurmClient

    env = dict(os.environ)
    handshake = env.pop("SLURMTRAIN_HANDSHAKE", "")
    takes_over = env.pop("SLURMTRAIN_AGENT_START", "1") != "1"
    try:
        job = read_job_context(run_dir, env)
    except SlurmtrainError as exc:
        say(f"the agent cannot start: {exc}")
        return 1
    _shake(handshake, "started")
    try:
        parts = read_components(env)
        slurm = HetSlurmClient(LocalHost(), parts) if len(parts) > 1 else CliSlurmClient(LocalHost())
        code = run_attempt(job, slurm, env, takes_over=takes_over)
    except Exception:  # noqa: BLE001 - the batch script starts us again; the log keeps what went wrong
        traceback.print_exc()
        return 70
    _shake(handshake, f"exit {code}")
    return code


def _rescue(run_dir: Path) -> int:
    from slurmtrain.agent.rescue import run_rescue
    from slurmtrain.hosts.local import LocalHost
    from slurmtrain.slurm.cli_client import CliSlurmClient

    try:
        return run_rescue(RunDir(run_dir), CliSlurmClient(LocalHost()))
    except SlurmtrainError as exc:
        say(f"{exc}; `slurmtrain watch` decides what follows")
        return 1


def _shake(path: str, word: str) -> None:
    """Tell the batch script how far we are."""
    if path:
        with contextlib.suppress(OSError), open(path, "a") as stream:
            stream.write(word + "\n")


if __name__ == "__main__":
    sys.exit(main())
