"""Everything that a run's page shows, as plain values: bounded, secrets masked, no control characters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import slurmtrain
from slurmtrain.core.causes import CAUSES
from slurmtrain.core.effective_time import Use
from slurmtrain.core.timetext import say_duration
from slurmtrain.errors import StoreError
from slurmtrain.evidence.secrets import Masker
from slurmtrain.logs.lines import clean
from slurmtrain.ops.explain import Explanation
from slurmtrain.ops.extract import read_extract
from slurmtrain.ops.interruption import is_interruption
from slurmtrain.ops.masking import make_masker
from slurmtrain.ops.page_ranks import find_ranks
from slurmtrain.ops.places import PAGE
from slurmtrain.ops.shipping.summary import say_copy
from slurmtrain.ops.story import say_share, shorten_story, tone_of, without_sentence
from slurmtrain.render.chart import draw_shares, draw_timeline
from slurmtrain.render.page import render_page
from slurmtrain.resources import bundled
from slurmtrain.store.publish import replace

_MAX_STORY = 1500
_MAX_TEXT = 2000
_MAX_FINDINGS = 80
_MAX_BYTES = 2_000_000
USE_WORDS = {
    Use.KEPT: "trained and kept",
    Use.OPEN: "training now",
    Use.UNKNOWN: "trained, not known whether kept",
    Use.LOST: "trained and lost",
    Use.STARTING: "starting",
    Use.RESTARTING: "between launches",
    Use.WAITING: "waiting for nodes",
    Use.HELD: "held for a person",
}


def write_page(found: Explanation, path: Path | None, overrides: Sequence[Path], now: float) -> Path:
    """Write it to ``path``, or into the run directory; whole or not at all. Raises ``StoreError``, ``SpecError``."""
    target = path if path is not None else _run_path(found) / PAGE
    replace(target, make_page(found, overrides, now).encode("utf-8", "replace"))
    return target


def _run_path(found: Explanation) -> Path:
    if found.view is None:
        raise StoreError(f"the directory of run {found.status.run_id} is not known")
    return found.view.run.path


def make_page(found: Explanation, overrides: Sequence[Path], now: float) -> str:
    """The page; of a run that would make it too big, with less detail."""
    page = ""
    for detail in (1.0, 0.25, 0.02):
        page = render_page(build_values(found, now, detail=detail), bundled=bundled("templates"), overrides=overrides)
        if len(page) <= _MAX_BYTES:
            break
    return page


def build_values(found: Explanation, now: float, *, detail: float = 1.0) -> dict[str, Any]:
    """The values of ``templates/explain/page.html.j2`` (docs/explain.md lists them); ``detail`` scales the bounds."""
    masker = make_masker(found.plan.spec if found.plan is not None else None)
    values = {**_answer(found), **_pictures(found, detail), **_story(found, detail), **_details(found, masker)}
    values |= {"made_at": _when(now), "version": slurmtrain.__version__}
    harmless: dict[str, Any] = make_harmless(values, masker)
    return harmless


def _answer(found: Explanation) -> dict[str, Any]:
    status = found.status
    extract = read_extract(found.view, list(found.evidence), before=15) if found.view is not None else None
    return {
        "run_id": status.run_id,
        "name": status.name,
        "state": status.state.value,
        "tone": tone_of(status.state),
        "headline": found.headline,
        "facts": _facts(found),
        "cause": None if is_interruption(found.trouble) else _cause(found),
        "interruption": found.interruption.to_dict() if found.interruption is not None else None,
        "decided": _decided(found),
        "carried_out": found.carried_out,
        "copy": _copy(found),
        "advice": found.advice,
        "steps": [asdict(step) for step in found.steps],
        "evidence": [asdict(line) for line in found.evidence],
        "extract": extract.to_dict() if extract is not None else None,
        "findings": [
            {"where": one.where, "text": one.text, "weight": one.weight, "path": one.path}
            for one in found.findings[:_MAX_FINDINGS]
        ],
        "slurm_error": found.slurm_error,
    }


def _pictures(found: Explanation, detail: float) -> dict[str, Any]:
    return {
        "ranks": find_ranks(found, detail),
        "chart": _chart(found),
        "shares": _shares(found),
        "measured": _measured(found),
        "causes": _causes(found),
    }


def _story(found: Explanation, detail: float) -> dict[str, Any]:
    story, most = shorten_story(found.story, 10, 40), int(_MAX_STORY * detail)
    return {
        "command": found.command,
        "story": [{**asdict(line), "number": line.number, "when": _when(line.at)} for line in story[-most:]],
        "story_left_out": max(0, len(story) - most),
    }


def _details(found: Explanation, masker: Masker) -> dict[str, Any]:
    return {
        "checkpoints": [{**asdict(one), "when": _when(one.at)} for one in found.checkpoints],
        "avoided": [
            {"node": one.node, "until": _when(one.until), "cause": one.cause, "reason": one.reason}
            for one in found.avoided[:50]
        ],
        "environment": _environment(found, masker),
        "places": [asdict(place) for place in found.places],
        "damage": list(found.damage)[:50],
        "restarted_from": found.restarted_from or "",
        "restarted_as": list(found.restarted_as),
    }


def make_harmless(value: Any, masker: Masker) -> Any:
    """The same with every text masked, bounded and printable."""
    if isinstance(value, str):
        return clean(masker.text(value), _MAX_TEXT)
    if isinstance(value, Mapping):
        return {key: make_harmless(item, masker) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_harmless(item, masker) for item in value]
    return value


def _when(at: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at is not None else ""


def _facts(found: Explanation) -> list[tuple[str, str]]:
    """What a person wants to know before anything else."""
    status = found.status
    attempts = len({row.attempt for row in found.launches})
    launches = sum(row.launch is not None for row in found.launches)
    nodes = found.launches[-1].nodes if found.launches else ""
    rows = [
        ("Job", status.job_id or ""),
        ("Attempts", f"{attempts}, with {launches} launches" if attempts else "none yet"),
        ("Nodes", nodes),
        ("Submitted", _when(status.submitted_at)),
        ("Started", _when(status.started_at)),
        ("Ended", _when(status.ended_at)),
        ("Took", say_duration(found.time.whole_s) if found.time.spans else ""),
    ]
    return [(name, text) for name, text in rows if text]


def _copy(found: Explanation) -> str:
    copy = found.remote
    if copy is None:
        return ""
    return say_copy(copy) + (f"; {copy.problem}" if copy.problem else "")


def _cause(found: Explanation) -> dict[str, Any] | None:
    trouble = found.trouble
    if trouble is None:
        return None
    cause = CAUSES.get(trouble.cause)
    attempt, launch = found.trouble_in or (-1, -1)
    confidence = trouble.confidence if isinstance(trouble.confidence, (int, float)) else 0
    return {
        "name": trouble.cause,
        "summary": cause.summary if cause else "",
        "sentence": trouble.sentence,
        "rank": trouble.rank,
        "node": trouble.node or "",
        "first_exit": asdict(found.first_exit) if found.first_exit else None,
        "where": f"attempt {attempt}" + (f", launch {launch}" if launch >= 0 else ""),
        "confidence": f"{confidence:.0%}" if confidence else "",
        "notes": [str(note) for note in trouble.notes[:10]],
    }


def _decided(found: Explanation) -> dict[str, Any] | None:
    decision = found.decision
    if decision is None:
        return None
    budgets = [
        f"{use.name.replace('_', ' ')}: {use.used:g} of {'?' if use.allowed is None else f'{use.allowed:g}'}"
        for use in found.budgets
    ]
    return {
        "action": decision.action.value.replace("_", " "),
        "by": found.decided_by,
        "reason": without_sentence(decision.reason, found.trouble.sentence if found.trouble is not None else ""),
        "exclude": list(decision.exclude)[:50],
        "budgets": budgets,
    }


def _chart(found: Explanation) -> dict[str, Any]:
    causes = {(row.attempt, row.launch): row.cause for row in found.launches if row.launch is not None and row.cause}
    chart = draw_timeline(found.time, causes)
    ends = {row.attempt: row for row in found.launches}
    rows = []
    for row in chart.rows:
        last = ends.get(row.attempt)
        label = "before the first attempt" if row.attempt < 0 else f"attempt {row.attempt}"
        if last is not None:
            label += f" · {last.cause or last.outcome}" + (f" → {last.decision}" if last.decision else "")
        bars = [{**asdict(bar), "title": _bar_title(bar.span, causes)} for bar in row.bars]
        rows.append({"label": label, "bars": [{k: v for k, v in bar.items() if k != "span"} for bar in bars]})
    return {
        "rows": rows,
        "ticks": _ticks(chart.ticks),
        "cuts": list(chart.cuts),
        "causes": list(chart.causes),
        "strip": [tuple(round(number, 3) for number in part[:4]) + part[4:] for part in chart.strip],
        "strip_ticks": _ticks(chart.strip_ticks),
        "attempts": chart.attempts,
    }


def _ticks(ticks: Sequence[tuple[float, float]]) -> list[tuple[float, str]]:
    one_day = bool(ticks) and ticks[-1][1] - ticks[0][1] < 86400
    form = "%H:%M:%S" if one_day else "%d %b %H:%M"
    return [(percent, time.strftime(form, time.localtime(at))) for percent, at in ticks]


def _bar_title(span: Any, causes: Mapping[tuple[int, int], str]) -> str:
    number = f"{span.attempt}" + (f".{span.launch}" if span.launch >= 0 else "")
    cause = causes.get((span.attempt, span.launch)) if span.use is Use.LOST else None
    about = " (estimated)" if span.estimated else ""
    return f"{number}: {say_duration(span.seconds)} {USE_WORDS[span.use]}{about}" + (f", {cause}" if cause else "")


def _shares(found: Explanation) -> list[dict[str, Any]]:
    whole = found.time.whole_s or 1.0
    return [
        {"style": use, "x": x, "width": width, "words": USE_WORDS[Use(use)], "share": say_share(seconds / whole)}
        | {"took": say_duration(seconds)}
        for use, x, width, seconds in draw_shares(found.time)
    ]


def _measured(found: Explanation) -> list[tuple[str, str]]:
    measured = found.time
    rows = [
        ("Failures", str(measured.failures)),
        ("Training time for each failure", say_duration(measured.failure_every_s)),
        ("Between two checkpoints", say_duration(measured.save_every_s)),
        ("A save takes", say_duration(measured.save_s)),
        ("Interval that would lose least (Young's rule)", say_duration(measured.suggested_s)),
    ]
    return [(name, text or "not measured") for name, text in rows] if measured.failures else []


def _causes(found: Explanation) -> list[dict[str, Any]]:
    """Each cause of the run, how often, what it cost, and where; the dearest first."""
    lost = {(s.attempt, s.launch): s.seconds for s in found.time.spans if s.use is Use.LOST}
    table: dict[str, dict[str, Any]] = {}
    for row in found.launches:
        if not row.cause:
            continue
        cause = CAUSES.get(row.cause)
        entry = table.setdefault(
            row.cause,
            {"cause": row.cause, "summary": cause.summary if cause else "", "count": 0, "lost_s": 0.0, "nodes": []},
        )
        entry["count"] += 1
        entry["lost_s"] += lost.get((row.attempt, row.launch if row.launch is not None else -1), 0.0)
        if row.node and row.node not in entry["nodes"] and len(entry["nodes"]) < 8:
            entry["nodes"].append(row.node)
    rows = sorted(table.values(), key=lambda entry: (-entry["lost_s"], -entry["count"]))[:40]
    return [{**entry, "lost": say_duration(entry["lost_s"])} for entry in rows]


def _environment(found: Explanation, masker: Masker) -> list[tuple[str, str]]:
    """What the run was started with."""
    plan = found.plan
    if plan is None:
        return []
    spec, data = plan.spec, plan.data
    asked = {name: value for name, value in asdict(spec.resources).items() if value not in (None, (), False)}
    variables = masker.environment({k: str(v) for k, v in spec.environment.variables.items()})
    rows = [
        ("Asked for by", f"{data.get('user', '')}@{data.get('host', '')}".strip("@")),
        ("Launcher", spec.launcher),
        ("Working directory", spec.workdir or ""),
        ("Resources", ", ".join(f"{name} {value}" for name, value in asked.items())),
        ("Setup", "; ".join(spec.environment.setup)),
        ("Variables", " ".join(f"{name}={value}" for name, value in variables.items())),
        ("slurmtrain", str(data.get("slurmtrain", ""))),
        ("Python of the agent", str(data.get("python", ""))),
    ]
    return [(name, text) for name, text in rows if text]
