"""A log for each node: above 32 nodes, on request, and never where none can be made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from render_support import render

from slurmtrain.core.spec import Component, Logs, Resources, Spec, has_node_logs


def _spec(nodes: int, per_node: bool | None = None, **more: object) -> Spec:
    return Spec(command=("true",), workdir="/", resources=Resources(nodes=nodes), logs=Logs(per_node), **more)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (_spec(32), False), (_spec(33), True), (_spec(1, per_node=True), True), (_spec(500, per_node=False), False),
        (_spec(32, components=(Component(nodes=1),)), True), (_spec(31, components=(Component(nodes=1),)), False),
    ],
)  # fmt: skip
def test_more_than_32_nodes_in_all_write_their_own(tmp_path: Path, spec: Spec, expected: bool) -> None:
    assert has_node_logs(spec) is expected
    assert ("node-%n.log" in render(spec, tmp_path).launch) is expected


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_components_write_into_files_of_their_own(tmp_path: Path, launcher: str) -> None:
    parts = (Component(nodes=2), Component(nodes=1))
    text = render(_spec(1, per_node=True, launcher=launcher, components=parts), tmp_path).launch
    assert [f"node-{number}-%n.log" in text for number in (1, 2, 3)] == [True, True, False]
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=30)


@pytest.mark.parametrize("name", ["launch", "with a %j and a space", "nowhere"])
def test_the_files_are_asked_for_only_where_one_can_be_made(tmp_path: Path, name: str) -> None:
    """The lines of the template, run by bash."""
    text = render(_spec(2, per_node=True), tmp_path).launch
    begin = text.index("# The output of each node goes")
    lines = text[begin : text.index("# What the agent changes")]
    folder = tmp_path / name
    if name != "nowhere":
        folder.mkdir()
    done = subprocess.run(
        ["bash", "-c", f'st_srun_args=()\n{lines}\nprintf "%s\\n" "${{st_srun_args[@]}}"'],
        env={"SLURMTRAIN_LAUNCH_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    escaped = str(folder).replace("%", "%%")
    expected = "\n" if name == "nowhere" else f"--output={escaped}/node-%n.log\n--open-mode=append\n"
    assert (done.stdout, done.stderr) == (expected, "")
