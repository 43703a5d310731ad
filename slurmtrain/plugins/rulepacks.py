"""Rule packs: TOML files with rules, each with lines that hit it and lines that nearly do.

A folder of packs is read in the order of file names; packs of the command line, the project, the user and the site come
before the bundled ones. Rules of those packs decide in their order; among the bundled rules the weight decides.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from slurmtrain.core.causes import ACTIONS, CAUSES, FAMILIES, RUNGS
from slurmtrain.core.rules import KINDS, OPERATORS, OUTCOMES, Metric, Rule, RuleSet
from slurmtrain.errors import NotFoundError, SpecError
from slurmtrain.plugins.literals import find_literals
from slurmtrain.plugins.ruletypes import check_types, is_number, is_whole
from slurmtrain.resources import bundled

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - depends on the interpreter
    import tomli as tomllib

DEFAULT_WEIGHT = {"cause": 70, "victim": 30}
MAX_PATTERN = 1000
MAX_PACK = 1 << 20
MAX_ID = 100
MAX_RULES = 2_000
_FIELDS = ({item.name for item in fields(Rule)} - {"own", "patterns", "literals"}) | {"pattern"}
_EXAMPLES = ("hit", "miss", "note")
_TUPLES = ("pattern", "victim_of", "exit_code", "signal", "state")


@dataclass(frozen=True, slots=True)
class Example:
    """A text and whether the rule `rule` must match its last line (those before are context)."""

    rule: str
    text: str
    hits: bool


@dataclass(frozen=True, slots=True)
class Pack:
    """One file of rules."""

    name: str
    path: Path
    own: bool
    rules: tuple[Rule, ...]
    examples: tuple[Example, ...]


def read_pack(path: Path, *, own: bool) -> Pack:
    """Read and check one pack; SpecError names the file, the rule and the key that is wrong."""
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_PACK + 1)
        if len(text) > MAX_PACK:
            raise SpecError(f"the rule pack {path} is larger than {MAX_PACK >> 20} MiB")
        data = tomllib.loads(text.decode("utf-8"))
    except RecursionError as exc:
        raise SpecError(f"{path} is not valid TOML: it is nested too deeply") from exc
    except FileNotFoundError as exc:
        raise NotFoundError(f"the rule pack {path} does not exist") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise SpecError(f"cannot read the rule pack {path}: {exc}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise SpecError(f"{path} is not valid TOML: {exc}") from exc
    unknown = set(data) - {"pack", "rule"}
    if unknown:
        raise SpecError(f"{path}: unknown key {sorted(unknown)[0]!r}; a pack has [pack] and [[rule]]")
    head = data.get("pack", {})
    entries = data.get("rule", [])
    if not isinstance(entries, list) or not isinstance(head, dict):
        raise SpecError(f"{path}: rules are written as [[rule]], the pack's name as [pack]")
    if len(entries) > MAX_RULES:
        raise SpecError(f"{path} has {len(entries)} rules; {MAX_RULES} are the most for one pack")
    defaults = head.get("defaults", {})
    if not isinstance(defaults, dict):
        raise SpecError(f"{path}: [pack] defaults must be a table of keys and values")
    rules = tuple(_read_rule(path, item, defaults, own=own) for item in entries)
    _check_unique(path, rules)
    examples = tuple(example for item in entries for example in _read_examples(item))
    return Pack(str(head.get("name", path.stem)), path, own, rules, examples)


def _read_rule(path: Path, item: Any, defaults: Mapping[str, Any], *, own: bool) -> Rule:
    if not isinstance(item, dict) or not isinstance(item.get("id"), str) or not 0 < len(item["id"]) <= MAX_ID:
        raise SpecError(f"{path}: every [[rule]] needs an id of 1 to {MAX_ID} characters")
    where = f"{path}: rule {item['id']!r}"
    for key in item:
        if key not in _FIELDS and key not in _EXAMPLES:
            raise SpecError(f"{where}: unknown key {key!r}; known are {', '.join(sorted(_FIELDS | set(_EXAMPLES)))}")
    values = {key: value for key, value in {**defaults, **item}.items() if key not in _EXAMPLES}
    check_types(where, {**defaults, **item})
    for key in _TUPLES:
        if key in values:
            value = values[key]
            values[key] = tuple(value) if isinstance(value, list) else (value,)
    if "metric" in values:
        values["metric"] = _read_metric(where, values["metric"])
    values["patterns"] = values.pop("pattern", ())
    try:
        rule = Rule(**values, own=own)
    except TypeError as exc:
        raise SpecError(f"{where}: {exc}") from exc
    return _finish_rule(where, rule)


def _read_metric(where: str, value: Any) -> Metric:
    if not isinstance(value, dict):
        raise SpecError(f"{where}: metric needs pattern, op, value and times")
    try:
        metric = Metric(**value)
    except TypeError as exc:
        raise SpecError(f"{where}: metric: {exc}") from exc
    if not is_number(metric.value) or not is_whole(metric.times) or not 1 <= metric.times <= 1_000_000:
        raise SpecError(f"{where}: metric.value must be a number, and metric.times a whole number from 1 on")
    if metric.op not in OPERATORS:
        raise SpecError(f"{where}: metric.op is {metric.op!r}; use one of {', '.join(OPERATORS)}")
    if _compile(where, "metric.pattern", metric.pattern).groups < 1:
        raise SpecError(f"{where}: metric.pattern needs one group (...) around the number")
    return metric


def _finish_rule(where: str, rule: Rule) -> Rule:
    _check_words(where, rule)
    _check_conditions(where, rule)
    if rule.metric is not None:
        rule = replace(rule, patterns=(rule.metric.pattern,))
    literals = [find_literals(pattern) for pattern in rule.patterns]
    if rule.exceptions is not None:
        names = find_literals(rule.exceptions) or ("error", "exception")
        literals = [words if min(map(len, words), default=0) > 4 else names for words in literals] or [names]
    weight = rule.weight or DEFAULT_WEIGHT.get(rule.kind, 10)
    return replace(rule, literals=tuple(literals), weight=weight)


def _check_words(where: str, rule: Rule) -> None:
    for key, value, allowed in (
        ("kind", rule.kind, KINDS),
        ("cause", rule.cause, tuple(CAUSES)),
        ("outcome", rule.outcome, OUTCOMES),
        ("action", rule.action, ACTIONS),
        ("first_rung", rule.first_rung, RUNGS),
    ):
        if value is not None and value not in allowed:
            raise SpecError(f"{where}: {key} is {value!r}; use one of {', '.join(allowed)}")
    for name in rule.victim_of:
        if name not in CAUSES and name not in FAMILIES and name != "*":
            raise SpecError(f"{where}: victim_of names {name!r}, which is no cause and no family")
    if not isinstance(rule.weight, int) or not 0 <= rule.weight <= 100:
        raise SpecError(f"{where}: weight is {rule.weight!r}; it must be a number from 0 to 100")


def _check_conditions(where: str, rule: Rule) -> None:
    for pattern in rule.patterns:
        _compile(where, "pattern", pattern)
    for key in ("exceptions", "near", "then", "unless", "reason", "node"):
        value = getattr(rule, key)
        if value is not None:
            _compile(where, key, value)
    facts = (rule.exit_code, rule.signal, rule.state, rule.reason, rule.node)
    if not rule.reads_log and rule.metric is None and not any(facts):
        raise SpecError(
            f"{where}: it has no condition; give pattern, exceptions, metric, exit_code, signal, state, ..."
        )
    if rule.cause is None and rule.outcome is None and rule.kind in ("cause", "victim"):
        raise SpecError(f"{where}: it decides nothing; give cause or outcome")


def _compile(where: str, key: str, value: Any) -> re.Pattern[str]:
    if not isinstance(value, str) or not value or len(value) > MAX_PATTERN:
        raise SpecError(f"{where}: {key} must be a regular expression of 1 to {MAX_PATTERN} characters")
    try:
        return re.compile(value)
    except (re.error, OverflowError, RecursionError) as exc:
        raise SpecError(f"{where}: {key} is not a valid regular expression: {exc}") from exc


def _check_unique(path: Path, rules: Sequence[Rule]) -> None:
    seen: set[str] = set()
    for rule in rules:
        if rule.id in seen:
            raise SpecError(f"{path}: two rules are called {rule.id!r}")
        seen.add(rule.id)


def _read_examples(item: Mapping[str, Any]) -> list[Example]:
    found = []
    for key, hits in (("hit", True), ("miss", False)):
        value = item.get(key, [])
        for text in [value] if isinstance(value, str) else value:
            found.append(Example(str(item["id"]), str(text), hits))
    return found


def find_packs(folders: Iterable[Path]) -> list[Path]:
    """Every ``*.toml`` of the folders (a folder may also be one file), in order."""
    found: list[Path] = []
    for folder in folders:
        if folder.is_dir():
            found.extend(sorted(folder.glob("*.toml")))
        elif folder.is_file():
            found.append(folder)
        else:
            raise NotFoundError(f"there is no rule pack at {folder}")
    return found


def load_packs(search_path: Iterable[Path] = ()) -> list[Pack]:
    """The packs of `search_path` (a user's, a project's, a site's), then the bundled ones."""
    packs = [read_pack(path, own=True) for path in find_packs(search_path)]
    packs.extend(read_pack(path, own=False) for path in find_packs([bundled("plugins") / "rules"]))
    return packs


def load_rules(search_path: Iterable[Path] = ()) -> RuleSet:
    """All rules in order of precedence; a rule of an earlier pack shadows a later one with the same id."""
    rules: dict[str, Rule] = {}
    packs = load_packs(search_path)
    for pack in packs:
        for rule in pack.rules:
            rules.setdefault(rule.id, rule)
    return RuleSet.of(rules.values(), [str(pack.path) for pack in packs])
