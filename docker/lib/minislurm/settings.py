"""What a cluster is asked to be: its settings, its timer profiles and where its files lie."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from minislurm.errors import MiniSlurmError

REPO = Path(__file__).resolve().parents[3]
CONF = REPO / "docker" / "conf"
DEFAULT_DIR = Path("/opt/mini-slurm")

# quick: as short as Slurm still obeys (KillWait below 5 is raised by slurmd).
# default: Slurm's own defaults, written out.
TIMERS: dict[str, dict[str, str]] = {
    "quick": {
        "cred_expire": "5",
        "kill_wait": "5",
        "slurmd_timeout": "10",
        "min_job_age": "30",
        "scheduler_parameters": "bf_interval=5,sched_interval=5,batch_sched_delay=0",
    },
    "default": {
        "cred_expire": "120",
        "kill_wait": "30",
        "slurmd_timeout": "300",
        "min_job_age": "300",
        "scheduler_parameters": "bf_interval=30,sched_interval=60,batch_sched_delay=3",
    },
}


@dataclass(frozen=True)
class Settings:
    """One cluster's settings; saved beside it, so that later verbs need no options."""

    name: str = "default"
    backend: str = "native"
    directory: str = str(DEFAULT_DIR)
    nodes: int = 4
    cpus: int = 8
    gpus: int = 4
    gpu_type: str = "h100"
    memory_mib: int = 8000
    timers: str = "quick"
    accounting: bool = True
    cgroup: str = "auto"
    port_base: int = 0
    user: str = "researcher"
    slurm: str = ""
    lanes: int = 1
    subnet: str = ""
    extra: list[str] = field(default_factory=list)

    @property
    def node_names(self) -> list[str]:
        """n1..nN; a named cluster's nodes carry its name, as cgroup paths are per node name."""
        prefix = "n" if self.name == "default" else self.name
        return [f"{prefix}{i}" for i in range(1, self.nodes + 1)]

    @property
    def cluster_name(self) -> str:
        return "mini" if self.name == "default" else f"mini-{self.name}"

    @property
    def layout(self) -> Layout:
        return Layout(Path(self.directory))

    @property
    def ports(self) -> dict[str, int]:
        """Port of every daemon, all from one block of 64 above `port_base`."""
        base = self.port_base
        ports = {"slurmctld": base, "slurmdbd": base + 1, "mariadb": base + 2, "ssh": base + 3}
        ports.update({f"slurmd-{node}": base + 4 + i for i, node in enumerate(self.node_names)})
        return ports


@dataclass(frozen=True)
class Layout:
    """Where the files of one cluster lie."""

    root: Path

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def database(self) -> Path:
        return self.root / "db"

    @property
    def devices(self) -> Path:
        return self.root / "dev"

    @property
    def shared(self) -> Path:
        return self.root / "shared"

    @property
    def venv(self) -> Path:
        return self.root / "venv"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge" / "munge.socket"

    @property
    def settings_file(self) -> Path:
        return self.root / "settings.json"

    @property
    def cluster_json(self) -> Path:
        return self.root / "cluster.json"

    def home(self, user: str) -> Path:
        return self.root / "home" / user

    def store(self, user: str) -> Path:
        return self.shared / user


def save_settings(settings: Settings) -> None:
    """Write the settings beside the cluster."""
    path = settings.layout.settings_file
    path.write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")


def load_settings(directory: Path) -> Settings | None:
    """The settings of the cluster in `directory`, or None where there is none."""
    path = Layout(directory).settings_file
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise MiniSlurmError(f"{path} cannot be read ({exc}); remove it and start again.") from exc
    known = {f.name for f in fields(Settings)}
    if not isinstance(data, dict):
        raise MiniSlurmError(f"{path} holds no settings; remove it and start again.")
    return Settings(**{key: value for key, value in data.items() if key in known})
