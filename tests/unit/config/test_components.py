"""The key ``components``."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.config.resolve import Request, resolve
from slurmtrain.config.settings import Settings
from slurmtrain.config.specfile import dump_spec
from slurmtrain.core.spec import Component, Spec, spec_from_dict, spec_to_dict
from slurmtrain.errors import SpecError

GOOD = "components: [{nodes: 2, partition: cpu, constraint: fast}, {tasks_per_node: 4, gpus_per_node: 4, memory: 64G}]"


def resolved(folder: Path, text: str) -> Spec:
    path = folder / "job.yaml"
    path.write_text(f"command: [bash, x]\n{text}\n")
    return resolve(Request(path), Settings(), {"PATH": "/bin"}, folder).spec


def test_components_are_read_written_and_read_again(tmp_path: Path) -> None:
    spec = resolved(tmp_path, GOOD)
    assert spec.components == (
        Component(nodes=2, partition="cpu", constraint="fast"),
        Component(tasks_per_node=4, gpus_per_node=4, memory="64G"),
    )
    assert spec_from_dict(spec_to_dict(spec)) == spec
    path = tmp_path / "spec.yaml"
    path.write_text(dump_spec(spec, {}, "id"))
    assert resolve(Request(path), Settings(), {"PATH": "/bin"}, tmp_path).spec == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("components: 2", "components: expected a list"),
        ("components: [2]", "component 1: expected keys"),
        ("components: [{}, {node: 2}]", "component 2: unknown key 'node'; did you mean 'nodes'?"),
        ("components: [{nodes: many}]", "component 1: nodes: expected a whole number"),
        ("components: [{time_limit: 5}]", "component 1: unknown key 'time_limit'"),
        ("components: [{nodes: 1}]\narray: 0-3", "array: Slurm makes no arrays of heterogeneous jobs"),
        ("components: [{nodes: 1}]\ncommand: [x, ':']", "command: with components"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    if "command" in text:
        (tmp_path / "job.yaml").write_text(text + "\n")
        with pytest.raises(SpecError) as caught:
            resolve(Request(tmp_path / "job.yaml"), Settings(), {"PATH": "/bin"}, tmp_path)
    else:
        with pytest.raises(SpecError) as caught:
            resolved(tmp_path, text)
    assert said in str(caught.value)
    assert "job.yaml:" in str(caught.value)
