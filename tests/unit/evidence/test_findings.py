"""Findings of a scene: alike ones of several nodes once, the gravest first, and nothing that a scene holds hurts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.evidence.findings import find_in, read_findings, weigh
from slurmtrain.evidence.manifest import NodeScene, Taking, write_manifest


def _scene(launch: Path, node: str, *takings: Taking, complete: bool = True) -> NodeScene:
    folder = launch / "scene" / node
    folder.mkdir(parents=True)
    scene = NodeScene(folder, node.partition("+")[0], "failed", "cuda_oom", 1.0, 2.0, 20.0, complete, takings)
    write_manifest(scene)
    return scene


def test_the_gravest_come_first_and_alike_ones_are_one(tmp_path: Path) -> None:
    for number in range(1, 6):
        quiet = Taking("fabric", "taken", notes=("no InfiniBand adapter (/sys/class/infiniband)",))
        full = Taking("disk", "taken", files=("a.txt",), notes=("store (/scratch) is full: 100.0 % used",))
        xid = Taking("kernel", "taken", files=("kernel.txt",), notes=("Xid 79 of GPU 0000:41:00: 1 times",))
        _scene(tmp_path, f"n{number}", quiet, full, *([xid] if number == 3 else []))
    found = read_findings(tmp_path)
    assert [(one.weight, one.collector, one.count) for one in found] == [
        ("bad", "kernel", 1), ("bad", "disk", 5), ("info", "fabric", 5)
    ]  # fmt: skip
    assert found[0].where == "n3"
    assert found[0].path == str(tmp_path / "scene" / "n3" / "kernel" / "kernel.txt")
    assert found[1].where == "n1, n2, n3 and 2 more"


def test_what_could_not_be_taken_is_told(tmp_path: Path) -> None:
    _scene(
        tmp_path, "n1", Taking("80-gpu", "timed_out", "20 s"), Taking("code", "failed", "KeyError: x"), complete=False
    )
    texts = {one.text: one.weight for one in read_findings(tmp_path)}
    assert texts == {
        "no gpu: its collector took too long": "info",
        "no code: its collector failed: KeyError: x": "info",
        "the scene is not complete: its taking was cut off": "warn",
    }


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        ("mlx5_0/1: DOWN, Disabled", "bad"),
        ("step_0: 2 processes killed for memory", "bad"),
        ("store (/scratch): does not answer", "bad"),
        ("mlx5_0/1: symbol_error 12", "warn"),
        ("the kernel's log cannot be read here (dmesg: not permitted)", "info"),
        ("there is no checkpoint in /x", "info"),
        ("rank 5 did not enter allreduce 40 of the default process group, in which ranks 0, 1 wait", "bad"),
        ("ranks 3, 4 left no record: dead, or stuck outside of collectives", "bad"),
        ("in collective 7 of group a rank 2 called gather 4, the others allreduce 8", "bad"),
        ("no core file in /work since the launch began", "info"),
        ("cannot run nvidia-smi: not found", "info"),
        ("nvidia-smi did not answer within 5 s", "bad"),
        ("GPU 00000000:41:00.0: ECC DRAM Uncorrectable 3", "bad"),
        ("GPU 00000000:41:00.0: ECC SRAM Correctable 3", "warn"),
        ("none of the newest 3 checkpoints passes its check", "bad"),
    ],
)
def test_weights(text: str, weight: str) -> None:
    assert weigh(text) == weight


def test_collectors_of_facts_are_quiet() -> None:
    assert weigh("git status: ended with 128", "code") == "info"
    assert weigh("git status: ended with 128", "other") == "warn"


def test_the_innermost_functions_of_a_core_file_are_named(tmp_path: Path) -> None:
    files = ("back-trace-3.txt", "back-trace-9.txt", "../../etc/back-trace-1.txt")
    note = "rank 3 (process 17, python3.11) died of SIGSEGV"
    scene = _scene(tmp_path, "n1", Taking("60-core-dumps", "taken", files=files, notes=(note,)))
    folder = scene.folder / "60-core-dumps"
    folder.mkdir()
    trace = (
        "Program terminated with signal SIGSEGV, Segmentation fault.\n#0  0x00007f2a in step (n=3) at a.c:7\n"
        "Thread 2 (LWP 18):\n#0  poll ()\n#1  wait ()\n\n"
        "Thread 1 (LWP 17):\n#0  0x00007f2a in step (n=3) at a.c:7\n#1  main () at a.c:9\n"
    )
    (folder / "back-trace-3.txt").write_text(trace, encoding="utf-8")
    (folder / "back-trace-9.txt").write_bytes(b"\xff\x00 no frames")
    found = {one.text: one.weight for one in find_in([scene])}
    assert found == {note: "bad", "back trace of 3: step ← main": "bad"}


def test_no_scene_has_no_findings(tmp_path: Path) -> None:
    assert read_findings(tmp_path / "nowhere") == []


def test_a_path_never_leads_out_of_the_scene(tmp_path: Path) -> None:
    scene = _scene(tmp_path, "n1", Taking("disk", "taken", files=("../../../etc/passwd",), notes=("x",)))
    assert find_in([scene])[0].path == str(scene.folder / "disk")


_PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_ROW = st.dictionaries(st.sampled_from(["name", "notes", "status", "files"]), _PLAIN | st.lists(_PLAIN, max_size=3))
_VALUES = _PLAIN | _ROW | st.lists(_PLAIN | _ROW, max_size=4)


@settings(max_examples=60)
@given(rows=_VALUES, node=_VALUES)
def test_a_manifest_may_hold_anything(tmp_path_factory: pytest.TempPathFactory, rows: Any, node: Any) -> None:
    folder = tmp_path_factory.mktemp("launch") / "scene" / "n1"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"collectors": rows, "node": node}), encoding="utf-8")
    for one in read_findings(folder.parents[1]):
        json.dumps(one.to_dict())
