"""Collectors of the live tests, placed where ``$SLURMTRAIN_PATH`` names them, and scenes as they lie on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cluster import wait_until
from runs import PYTHON, LiveRun

FACTS = """
import json
TIME_LIMIT_S = 10

def collect(scene):
    scene.write("facts.json", json.dumps(scene.to_dict()))
    scene.note(f"told by {scene.node}")
"""
STUBBORN = """
import os, signal, time
TIME_LIMIT_S = 3

def collect(scene):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("begun", flush=True)
    if os.fork() == 0:
        os.setpgid(0, 0)
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGSTOP)
"""
FLOOD = """#!/bin/sh
# TIME_LIMIT_S = 20
# SIZE_LIMIT = 20000
yes flooded
"""
OUTSIDE = """
WHERE = "watcher"

def collect(scene):
    print(scene.ending, scene.job_id)
"""
ALL = {"10-facts.py": FACTS, "20-stubborn.py": STUBBORN, "30-flood.sh": FLOOD, "40-outside.py": OUTSIDE}
QUICK = {name: ALL[name] for name in ("10-facts.py", "40-outside.py")}


def place(store: Path, collectors: dict[str, str]) -> dict[str, str]:
    """The environment with which submit finds these collectors."""
    folder = store / "place" / "collectors"
    folder.mkdir(parents=True)
    for name, source in collectors.items():
        (folder / name).write_text(source)
    owner = store.stat()
    for path in (folder.parent, folder, *folder.iterdir()):
        os.chown(path, owner.st_uid, owner.st_gid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return {"SLURMTRAIN_PATH": str(folder.parent)}


def program(store: Path, text: str) -> list[str]:
    """The command of a small training program."""
    path = store / "program.py"
    path.write_text(text)
    path.chmod(0o644)
    return [PYTHON, str(path)]


def scene_folder(run: LiveRun, attempt: int = 0, launch: int = 0) -> Path:
    return run.path / "attempts" / f"{attempt:03d}" / "launches" / str(launch) / "scene"


def manifests(run: LiveRun, attempt: int = 0, launch: int = 0) -> dict[str, dict[str, Any]]:
    """Folder name → manifest."""
    folder = scene_folder(run, attempt, launch)
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/manifest.json"))}


def wait_complete(
    run: LiveRun, count: int, attempt: int = 0, launch: int = 0, timeout_s: float = 120
) -> dict[str, Any]:
    """Until so many nodes' manifests are complete."""

    def look() -> dict[str, Any] | None:
        found = manifests(run, attempt, launch)
        return found if sum(m["complete"] for m in found.values()) >= count else None

    return wait_until(look, timeout_s, f"{count} complete scenes in {scene_folder(run, attempt, launch)}")


def wait_facts(run: LiveRun, count: int, timeout_s: float = 120) -> dict[str, Any]:
    """Until so many nodes of the first launch have ``10-facts``: KILL may cut off later ones where time is short."""

    def look() -> dict[str, Any] | None:
        found = manifests(run)
        return found if sum("10-facts" in by_name(m) for m in found.values()) >= count else None

    return wait_until(look, timeout_s, f"10-facts of {count} nodes in {scene_folder(run)}")


def facts_of(run: LiveRun, node: str, attempt: int = 0, launch: int = 0) -> dict[str, Any]:
    """What the collector ``10-facts`` was told on a node."""
    found: dict[str, Any] = json.loads(
        (scene_folder(run, attempt, launch) / node / "10-facts" / "facts.json").read_text()
    )
    return found


def by_name(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in manifest["collectors"]}


def assert_private(folder: Path, uid: int) -> None:
    for path in (folder, *folder.rglob("*")):
        info = path.lstat()
        assert info.st_uid == uid, path
        assert info.st_mode & 0o077 == 0 or (path.name == "manifest.json"), path


def journal(run: LiveRun) -> list[dict[str, Any]]:
    """All events of the run, as they lie on the disk."""
    lines = [line for path in sorted((run.path / "journal").glob("*.jsonl")) for line in path.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda row: row["at"])
