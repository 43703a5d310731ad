"""A run before it exists: rendered, checked, and its files made in memory. Nothing is written before all is right."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import slurmtrain
from slurmtrain.checkpoints.collect_own import load_formats
from slurmtrain.checkpoints.own import OWN_FORMATS
from slurmtrain.config.resolve import Resolved
from slurmtrain.config.specfile import dump_spec
from slurmtrain.core.array import ArrayTask
from slurmtrain.core.spec import Spec, spec_to_dict
from slurmtrain.errors import SpecError, StoreError
from slurmtrain.evidence.choose import choose_collectors
from slurmtrain.evidence.collector import Collector
from slurmtrain.evidence.frozen import COLLECTORS, freeze_collectors
from slurmtrain.ops.freeze import freeze
from slurmtrain.ops.shipping.start import find_program
from slurmtrain.ops.submitter import submitter
from slurmtrain.render.rescue import build_rescue_script
from slurmtrain.render.scripts import Scripts, render_scripts
from slurmtrain.resources import bundled
from slurmtrain.store.publish import to_json
from slurmtrain.store.rundir import RunDir

_CHECK_S = 20.0
_OLDEST_PYTHON = (3, 10)
_SLUG = 40  # of a run id's 64 characters


@dataclass(frozen=True, slots=True)
class Extensions:
    """Folders that come before the bundled ones."""

    templates: Sequence[Path] = ()
    rules: Sequence[Path] = ()
    formats: Sequence[Path] = ()  # of checkpoints
    collectors: Sequence[Collector] | None = None  # all there are; None: the bundled ones


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that could be submitted, rendered and checked; nothing is written yet."""

    run: RunDir
    resolved: Resolved
    scripts: Scripts
    python: str
    created_at: datetime
    extensions: Extensions
    notes: tuple[str, ...] = ()
    restarted_from: str | None = None  # the run whose parameters these are
    array: ArrayTask | None = None  # which task of an array it is
    group: str | None = None  # the group of runs that were submitted together


def build_run_id(name: str, now: datetime, *, room: int = 0) -> str:
    """``<name>-<date>-<random>``: lower case letters, digits and dashes, at most 64 characters less ``room``."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain)[: _SLUG - room].strip("-") or "run"
    return f"{slug}-{now:%Y%m%d-%H%M}-{secrets.token_hex(4)}"


def prepare(
    resolved: Resolved,
    run_dir: Path,
    now: datetime,
    extensions: Extensions,
    agent_python: str | None = None,
    array: ArrayTask | None = None,
) -> Prepared:
    """Render and check a run for this directory. Raises ``SpecError`` for what only a rendered script shows."""
    check_path(run_dir)
    python, python_note = choose_agent_python(agent_python)
    prepared = render_run(resolved, run_dir, now, extensions, python, array)
    check_bash(prepared.scripts.launch, "launch.sh", resolved.spec)
    for name, script in prepared.scripts.stages.items():
        check_bash(script, name, resolved.spec)
    check_bash(prepared.scripts.batch, "job.sbatch", resolved.spec)
    return dataclasses.replace(
        prepared, notes=(*resolved.notes, *python_note, *unknown_collectors(resolved.spec, extensions))
    )


def render_run(
    resolved: Resolved,
    run_dir: Path,
    now: datetime,
    extensions: Extensions,
    python: str,
    array: ArrayTask | None = None,
    group: str | None = None,
) -> Prepared:
    """A run with its scripts, which nobody has checked yet."""
    run = RunDir(run_dir)
    scripts = render_scripts(
        resolved.spec,
        run_id=run.run_id,
        run_dir=run_dir,
        agent_python=python,
        bundled=bundled("templates"),
        overrides=extensions.templates,
        array=array,
    )
    return Prepared(run, resolved, scripts, python, now, extensions, array=array, group=group)


def build_files(prepared: Prepared) -> dict[str, tuple[bytes, int]]:
    """Every file of the run directory: name → content and mode."""
    return {**build_own_files(prepared), **build_frozen_files(prepared.extensions)}


def build_own_files(prepared: Prepared) -> dict[str, tuple[bytes, int]]:
    """The files that no other run has."""
    run, resolved = prepared.run, prepared.resolved
    plan = {
        "run_id": run.run_id,
        "created_at": prepared.created_at.timestamp(),
        **submitter(),
        "python": prepared.python,
        "slurmtrain": slurmtrain.__version__,
        "spec": spec_to_dict(resolved.spec),
        "sources": dict(resolved.sources),
    }
    if resolved.spec.ship.url is not None:
        plan["ship_program"] = find_program()
    if prepared.restarted_from is not None:
        plan["restarted_from"] = prepared.restarted_from
    if prepared.array is not None:
        plan["array"] = prepared.array.to_dict()
    if prepared.group is not None:
        plan["group"] = prepared.group
    rescue = build_rescue_script(resolved.spec, run.path, prepared.python) if resolved.spec.rescue else None
    return {
        **({run.rescue_script.name: (rescue.encode(), 0o700)} if rescue is not None else {}),
        run.spec.name: (dump_spec(resolved.spec, resolved.sources, run.run_id).encode(), 0o600),
        run.plan.name: (to_json(plan), 0o600),
        run.batch_script.name: (prepared.scripts.batch.encode(), 0o700),
        run.launch_script.name: (prepared.scripts.launch.encode(), 0o700),
        **{run.stage_script(name).name: (text.encode(), 0o700) for name, text in prepared.scripts.stages.items()},
    }


def build_frozen_files(extensions: Extensions) -> dict[str, tuple[bytes, int]]:
    """The program, the rules and the formats that the run keeps, whatever is installed later."""
    formats = load_formats(extensions.formats)
    collectors = _collectors(extensions)
    agent, rules = freeze(extensions.rules, [c.source for c in collectors if c.python])
    return {
        **({OWN_FORMATS: (to_json(formats), 0o644)} if formats else {}),
        "rules.json": (rules, 0o644),
        COLLECTORS: (freeze_collectors(collectors), 0o600),
        "agent.pyz": (agent, 0o755),
    }


def _collectors(extensions: Extensions) -> Sequence[Collector]:
    return choose_collectors([]).collectors if extensions.collectors is None else extensions.collectors


def unknown_collectors(spec: Spec, extensions: Extensions) -> tuple[str, ...]:
    """A note for each name that ``scene.disable`` holds and no collector has."""
    known = {collector.name for collector in _collectors(extensions)} if spec.scene.disable else set()
    unknown = [name for name in spec.scene.disable if name not in known]
    return tuple(f"scene.disable names {name!r}, but no collector has that name" for name in unknown)


def check_path(run_dir: Path) -> None:
    """Raises ``StoreError`` for a store in whose path Slurm could not write a log."""
    text = str(run_dir)
    if "\\" in text or not text.isprintable():
        raise StoreError(
            f"the store {text!r} has a backslash or a control character in its path; choose another --store"
        )
    if len(os.fsencode(run_dir)) > 900:  # Slurm cuts file names at 1024 bytes (MAXPATHLEN)
        raise StoreError(f"the store's path is too long for Slurm: {len(text)} characters; choose a shorter --store")


def check_bash(script: str, name: str, spec: Spec) -> None:
    """Let bash read a script without running it; raises ``SpecError`` with bash's own words."""
    with tempfile.TemporaryFile() as file:
        file.write(script.encode())
        file.seek(0)
        try:
            result = subprocess.run(
                ["/bin/bash", "-n"], stdin=file, capture_output=True, timeout=_CHECK_S, check=False, env={"LC_ALL": "C"}
            )
        except (OSError, subprocess.SubprocessError):
            return  # no bash here says nothing about the compute nodes
    if result.returncode != 0:
        said = result.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = said[0].removeprefix("/bin/bash: ").removeprefix("bash: ") if said else "a syntax error"
        where = "environment.setup" if name == "launch.sh" and spec.environment.setup else f"the template of {name}"
        if name.startswith("stage_"):
            where = f"{name}.run"
        raise SpecError(f"{where}: bash cannot read it ({name}, {reason})")


def choose_agent_python(wanted: str | None) -> tuple[str, tuple[str, ...]]:
    """The interpreter that the agent will run under, and notes. It must start without ``LD_LIBRARY_PATH``.

    Raises ``SpecError`` where none does, or where the one that settings name does not.
    """
    if wanted is not None:
        problem = _try_python(wanted)
        if problem:
            raise SpecError(f"agent_python {wanted!r}: {problem}")
        return wanted, ()
    candidates = dict.fromkeys([sys.executable, getattr(sys, "_base_executable", ""), "/usr/bin/python3"])
    problems: dict[str, str] = {}
    for python in filter(None, candidates):
        problem = None if _runs_as_it_is(python) else _try_python(python)
        if problem is None:
            note = (
                (f"the agent will run under {python}: {sys.executable} {problems[sys.executable]}",) if problems else ()
            )
            return python, note
        problems[python] = problem
    listed = "; ".join(f"{python} {problem}" for python, problem in problems.items())
    raise SpecError(f"no Python for the agent: {listed}; name one of 3.10 or newer as agent_python in the settings")


def _runs_as_it_is(python: str) -> bool:
    """Whether it is the one that runs here, and nothing in the environment helps it to: then it need not be tried."""
    helped = any(name.startswith(("LD_", "PYTHON")) for name in os.environ)
    try:
        return python == sys.executable and not helped and Path(python).samefile("/proc/self/exe")
    except OSError:
        return False


def _try_python(python: str) -> str | None:
    if not python.startswith("/"):
        return "is no absolute path"
    code = "import sys, zipfile, zlib, json, subprocess; print(*sys.version_info[:2])"
    try:
        result = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, timeout=_CHECK_S, check=False, env={"PATH": os.defpath}
        )
    except (OSError, subprocess.SubprocessError) as exc:
        return f"does not run: {getattr(exc, 'strerror', None) or type(exc).__name__}"
    words = result.stdout.split()
    if result.returncode != 0 or len(words) != 2:
        return "does not start without LD_LIBRARY_PATH"
    if tuple(int(word) for word in words) < _OLDEST_PYTHON:
        return f"is Python {words[0].decode()}.{words[1].decode()}, older than 3.10"
    return None
