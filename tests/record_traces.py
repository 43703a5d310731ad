"""Record what a real Slurm shows during the scenarios of slurmtrain.testing.traces.

    eval "$(docker/mini-slurm env)"; python tests/record_traces.py [SCENARIO...]

Writes tests/data/slurm/<version>/traces/<scenario>.json. Needs a cluster with the quick timers and accounting.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "live"))

from cluster import Cluster  # noqa: E402
from live_stage import LiveStage  # noqa: E402

from slurmtrain.testing.traces import SCENARIOS, record  # noqa: E402


def main(names: list[str]) -> None:
    cluster = Cluster.from_env()
    version = ".".join(str(cluster.facts["slurm_version"]).split(".")[:2])
    target = HERE / "data" / "slurm" / version / "traces"
    target.mkdir(parents=True, exist_ok=True)
    for name in names or list(SCENARIOS):
        cluster.restore()
        directory = cluster.store / f"traces-{os.getpid()}-{name}"
        directory.mkdir()
        os.chown(directory, int(cluster.facts["user"]["uid"]), int(cluster.facts["user"]["gid"]))
        trace = record(LiveStage(cluster, directory), SCENARIOS[name])
        (target / f"{name}.json").write_text(json.dumps(trace, indent=1) + "\n", encoding="utf-8")
        print(name, len(trace["looks"]), "looks", [row["state"] for row in trace["rows"]], flush=True)
    cluster.restore()


if __name__ == "__main__":
    main(sys.argv[1:])
