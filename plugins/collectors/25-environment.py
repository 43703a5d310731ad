"""The launch's environment with its secrets masked, the loaded modules, and which container it ran in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from slurmtrain.evidence.container import describe_container
from slurmtrain.evidence.secrets import Masker

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 5
SIZE_LIMIT = 1 << 20


def collect(scene: Scene) -> None:
    environ = scene.environ
    masked = Masker(environ).environment(environ)
    text = "".join(f"{name}={value}\n" for name, value in sorted(masked.items()))
    scene.write("environment.txt", text)
    modules = [name for name in environ.get("LOADEDMODULES", "").split(":") if name]
    if modules:
        scene.write("modules.txt", "\n".join(modules) + "\n")
    elif not any(name in environ for name in ("LOADEDMODULES", "LMOD_CMD", "MODULESHOME")):
        scene.note("no environment modules on this node")
    container = describe_container(environ, [rank.pid for rank in scene.ranks])
    if container:
        scene.write("container.json", json.dumps(container, indent=1) + "\n")
