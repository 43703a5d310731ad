"""``slurmtrain rules``: the rules that recognise failures, listed and tested."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.output import clean, print_json, print_text

if TYPE_CHECKING:
    from slurmtrain.core.rules import Rule
    from slurmtrain.plugins.rulepacks import Example, Pack


EXAMPLE_S = 3.0


@click.group("rules")
def command() -> None:
    """List and test the rules that recognise failures."""


@command.command("list", short_help="Show every rule, in order of precedence.")
@click.option("--rules", "paths", multiple=True, type=click.Path(path_type=Path), help="Rule pack or folder; first.")
@click.option("--cause", help="Only rules that lead to this cause.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def list_rules(paths: tuple[Path, ...], cause: str | None, as_json: bool) -> None:
    """Show every rule in order of precedence, and which are shadowed by one of the same name."""
    from slurmtrain.plugins.rulepacks import load_packs

    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for pack in load_packs(paths):
        for rule in pack.rules:
            if cause is None or rule.cause == cause:
                rows.append({"pack": pack.name, "path": str(pack.path), "shadowed": rule.id in seen, **rule.to_dict()})
            seen.add(rule.id)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        what = row.get("cause") or row.get("outcome") or row.get("kind", "cause")
        shadow = "  (shadowed)" if row["shadowed"] else ""
        print_text(f"{row['pack']:<12} {clean(row['id']):<28} {what:<24} weight {row.get('weight', 0):>3}{shadow}")


@command.command("test", short_help="Run every rule on its examples.")
@click.argument("packs", nargs=-1, type=click.Path(path_type=Path), metavar="[PACK]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def test_rules(ctx: click.Context, packs: tuple[Path, ...], as_json: bool) -> None:
    """Run every rule on its examples, and report shadowing, missing examples and slow patterns.

    Without PACK the bundled packs are tested. Exit code 1 when an example fails or a pattern is slow.
    """
    from slurmtrain.plugins.rulepacks import find_packs, load_packs, read_pack
    from slurmtrain.plugins.ruletest import find_problems

    found = [read_pack(path, own=True) for path in find_packs(packs)] if packs else load_packs()
    failures = [(pack, example) for pack in found for example in pack.examples if not _holds(pack, example)]
    problems = find_problems(found, search_in_time)
    grave = [problem for problem in problems if problem.kind in ("slow", "filter", "hidden")]
    count = sum(len(pack.examples) for pack in found)
    if as_json:
        print_json(
            {
                "packs": len(found),
                "rules": sum(len(pack.rules) for pack in found),
                "examples": count,
                "failed": [
                    {"pack": pack.name, "rule": item.rule, "hits": item.hits, "text": item.text}
                    for pack, item in failures
                ],
                "problems": [
                    {"pack": item.pack, "rule": item.rule, "kind": item.kind, "text": item.text} for item in problems
                ],
            }
        )
    else:
        _print(found, count, failures)
        for problem in problems:
            print_text(f"{problem.kind:<9} {clean(problem.pack)}/{clean(problem.rule)}: {clean(problem.text)}")
    ctx.exit(1 if failures or grave else 0)


def _print(packs: list[Pack], count: int, failures: list[tuple[Pack, Example]]) -> None:
    print_text(
        f"{len(packs)} packs, {sum(len(pack.rules) for pack in packs)} rules, {count} examples, {len(failures)} failed"
    )
    for pack, example in failures:
        wanted = "must match" if example.hits else "must not match"
        print_text(f"failed    {clean(pack.name)}/{clean(example.rule)} {wanted}: {clean(example.text[:300])}")


def search_in_time(pattern: re.Pattern[str], text: str) -> tuple[bool, float]:
    """Whether it is found, and in how many seconds; a search that takes for ever is ended and finds nothing."""
    from slurmtrain.logs.deadline import DeadlineError, deadline
    from slurmtrain.plugins.ruletest import WAIT_S

    started = time.perf_counter()
    try:
        with deadline(WAIT_S):
            return pattern.search(text) is not None, time.perf_counter() - started
    except DeadlineError:
        return False, WAIT_S


def _holds(pack: Pack, example: Example) -> bool:
    """Whether the rule does with its example what the pack says, by the engine itself, and in time."""
    from slurmtrain.logs.deadline import DeadlineError, deadline

    rule = next(rule for rule in pack.rules if rule.id == example.rule)
    try:
        with deadline(EXAMPLE_S):
            return _engine_hits(rule, example.text) == example.hits
    except DeadlineError:
        return False


def _engine_hits(rule: Rule, text: str) -> bool:
    from dataclasses import replace

    from slurmtrain.core.rules import RuleSet
    from slurmtrain.logs.scan import scan_bytes

    if rule.kind in ("ignore", "mark") or rule.metric is not None:
        plain = replace(rule, kind="notice", metric=None)
        return bool(scan_bytes(text.encode() + b"\n", RuleSet.of([plain])).findings)
    return any(item.rule == rule.id for item in scan_bytes(text.encode() + b"\n", RuleSet.of([rule])).findings)
