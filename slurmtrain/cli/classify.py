"""``slurmtrain classify``: why did the training behind this log fail? Offline, without Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.output import clean, print_json, print_text
from slurmtrain.errors import NotFoundError, SpecError, UsageError

if TYPE_CHECKING:
    from slurmtrain.core.diagnosis.model import Diagnosis
    from slurmtrain.core.facts import Facts
    from slurmtrain.core.findings import Findings
    from slurmtrain.core.rules import RuleSet

_EXAMPLES = """\b
Examples:
  slurmtrain classify slurm-4711.out
  slurmtrain classify --state FAILED --exit-code 1:0 --json train.log.gz
  ssh cluster cat run/slurm.out | slurmtrain classify -
  slurmtrain classify logs/            one launch, a file per rank"""
_NO_FAILURE = "ok"


@click.command("classify", epilog=_EXAMPLES)
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--state", help="Slurm's state of the job, as sacct prints it (FAILED, TIMEOUT, 'CANCELLED by 1000').")
@click.option("--exit-code", metavar="N[:SIG]", help="ExitCode of the job, as sacct prints it.")
@click.option("--derived-exit-code", metavar="N[:SIG]", help="DerivedExitCode of the job.")
@click.option("--elapsed", metavar="TIME", help="How long the job ran ([D-]HH:MM:SS or seconds).")
@click.option("--time-limit", metavar="TIME", help="The job's time limit.")
@click.option("--last-output-age", metavar="TIME", help="How old the last output was when the job ended.")
@click.option("--nodes", "nnodes", type=click.IntRange(min=1), help="Number of nodes of the job.")
@click.option("--facts", "facts_file", type=click.Path(path_type=Path), help="JSON file with more facts.")
@click.option(
    "--rules", "rule_paths", multiple=True, type=click.Path(path_type=Path), help="Rule pack or folder; first."
)
@click.option("--together", is_flag=True, help="All LOGs belong to one launch.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each log.")
def command(
    logs: tuple[str, ...],
    facts_file: Path | None,
    rule_paths: tuple[Path, ...],
    together: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Say what failed first, where, and whether a retry can help, from the text of logs and Slurm's facts.

    LOG is a file (also gzip, bzip2, xz, zstd), a folder with one file per rank, or - for standard input.
    """
    from slurmtrain.core.diagnose import diagnose
    from slurmtrain.ops.freeze import read_rules

    facts = _read_facts(given, facts_file)
    rules = read_rules(rule_paths)
    groups = [list(logs)] if together else [[log] for log in logs]
    for group in groups:
        findings = [item for log in group for item in _scan(log, rules)]
        answer = diagnose(facts, findings, rules)
        if as_json:
            print_json(_to_json(group[0], answer))
        else:
            _print_answer(group[0], answer)
            if answer.cause == "unknown":
                _print_unexplained(group[0], findings)


def _scan(log: str, rules: RuleSet) -> list[Findings]:
    from slurmtrain.logs.fastscan import find_finder
    from slurmtrain.logs.open_log import STDIN, scan_folder, scan_source

    path = Path(log)
    if log != STDIN and path.is_dir():
        found = scan_folder(path, rules)
        if not found:
            raise NotFoundError(f"the folder {log} holds no logs")
        return found
    size = path.stat().st_size if log != STDIN and path.is_file() else 0
    return [scan_source(log, rules, finder=find_finder(rules, size))]


def _read_facts(given: dict[str, Any], facts_file: Path | None) -> Facts:
    from slurmtrain.core.facts import Facts, check_facts

    values: dict[str, Any] = {}
    if facts_file is not None:
        values.update(_read_facts_file(facts_file))
    code, signal = _parse_exit_code("--exit-code", given["exit_code"])
    derived, derived_signal = _parse_exit_code("--derived-exit-code", given["derived_exit_code"])
    named = {
        "state": given["state"],
        "exit_code": code,
        "signal": signal,
        "derived_exit_code": derived,
        "derived_signal": derived_signal,
        "elapsed_s": _parse_time("--elapsed", given["elapsed"]),
        "time_limit_s": _parse_time("--time-limit", given["time_limit"]),
        "last_output_age_s": _parse_time("--last-output-age", given["last_output_age"]),
        "nnodes": given["nnodes"],
    }
    values.update({key: value for key, value in named.items() if value is not None})
    try:
        check_facts(values)
        return Facts.from_dict(values)
    except (TypeError, ValueError, AttributeError) as exc:
        raise SpecError(f"{facts_file}: these facts cannot be read: {exc}") from exc


def _read_facts_file(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}") from None
    except (OSError, ValueError, RecursionError) as exc:
        raise SpecError(f"cannot read the facts in {path}: {exc}") from exc
    if not isinstance(data, dict):
        raise SpecError(f"{path} must hold one JSON object with facts")
    return data


def _parse_exit_code(option: str, text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    code, _, signal = text.partition(":")
    try:
        return int(code), int(signal) if signal else None
    except ValueError:
        raise UsageError(f"{option} is {text[:40]!r}; give N or N:SIGNAL as sacct prints it, such as 1:0") from None


def _parse_time(option: str, text: str | None) -> float | None:
    """Seconds of ``D-HH:MM:SS``, ``HH:MM:SS``, ``MM:SS`` or a plain number of seconds."""
    if text is None:
        return None
    days, dash, rest = text.rpartition("-") if "-" in text else ("0", "-", text)
    try:
        parts = [float(part) for part in rest.split(":")]
        whole = float(days or 0) * 86400
    except ValueError:
        parts = []
        whole = 0.0
    if not parts or len(parts) > 3 or not dash:
        raise UsageError(f"{option} is {text[:40]!r}; give [D-]HH:MM:SS or seconds")
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + part
    return whole + seconds


def _to_json(log: str, answer: Diagnosis) -> dict[str, Any]:
    """The shape that others build on; more keys may come, these stay."""
    return {
        "file": log,
        "cause": _NO_FAILURE if answer.cause == "no_failure" else answer.cause,
        "family": answer.family,
        "retryable": answer.retryable,
        "action": answer.action,
        "rank": answer.rank,
        "line": answer.line,
        "evidence": answer.evidence[0].text if answer.evidence else None,
        "confidence": answer.confidence,
        "node": answer.node,
        "evidence_file": answer.file,
        "sentence": answer.sentence,
        "rule": answer.rule,
        "outcome": answer.outcome,
        "suspects": [{"node": item.node, "confidence": item.confidence, "why": item.why} for item in answer.suspects],
        "notes": list(answer.notes),
        "advice": answer.advice,
    }


def _print_answer(log: str, answer: Diagnosis) -> None:
    name = _NO_FAILURE if answer.cause == "no_failure" else answer.cause
    print_text(f"{clean(log)}: {name} ({answer.family}), {_retry_words(answer)}, confidence {answer.confidence:.0%}")
    print_text(f"  {clean(answer.sentence)}")
    for line in answer.evidence:
        place = f"{line.file}:{line.line}" if line.file and line.file != log else f"line {line.line}"
        print_text(f"  {clean(place)}: {clean(line.text)}")
    for suspect in answer.suspects:
        print_text(f"  suspect node {clean(suspect.node)} ({suspect.confidence:.0%}): {clean(suspect.why)}")
    for note in answer.notes:
        print_text(f"  note: {clean(note)}")
    if answer.cause != "no_failure":
        print_text(f"  {clean(answer.advice)}")


def _print_unexplained(log: str, findings: list[Findings]) -> None:
    """Where to look, and how the next such log is recognised."""
    from slurmtrain.core.diagnosis.unexplained import find_unexplained

    found = find_unexplained(findings)
    for name, number, text in found:
        print_text(
            f"  no rule explains {clean(f'line {number}' if name == log else f'{name}:{number}')}: {clean(text)}"
        )
    if found:
        print_text("  A rule of your own knows them next time; `slurmtrain rules test` tries it (docs/rules.md).")


def _retry_words(answer: Diagnosis) -> str:
    if answer.outcome is not None:
        return f"rule says {answer.outcome}"
    return (
        f"retry: {answer.action}" if answer.retryable else ("nothing to do" if answer.action == "none" else "no retry")
    )
