"""Packs of rules: what is refused, who comes first, what users' rules decide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.facts import Facts, RankExit
from slurmtrain.core.rules import RuleSet
from slurmtrain.errors import NotFoundError, SpecError
from slurmtrain.logs.scan import scan_bytes
from slurmtrain.plugins.literals import find_literals
from slurmtrain.plugins.rulepacks import load_packs, load_rules, read_pack
from slurmtrain.plugins.ruletest import find_problems

FAILED = Facts(state="FAILED", exit_code=1)


def pack(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def rule(body: str) -> str:
    return f'[[rule]]\nid = "mine"\n{body}\nhit = ["x"]\nmiss = ["y"]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[rule]\n", "not valid TOML"),
        ("rules = 3\n", "unknown key 'rules'"),
        ("[[rule]]\ncause = 'cuda_oom'\n", "needs an id"),
        (rule("cause = 'cuda_oom'\npatern = 'x'"), "unknown key 'patern'"),
        (rule("cause = 'cuda_ooom'\npattern = 'x'"), "cause is 'cuda_ooom'"),
        (rule("cause = 'cuda_oom'\npattern = '('"), "not a valid regular expression"),
        (rule("cause = 'cuda_oom'"), "no condition"),
        (rule("pattern = 'x'"), "decides nothing"),
        (rule("cause = 'cuda_oom'\npattern = 'x'\noutcome = 'Explode'"), "outcome is 'Explode'"),
        (rule("cause = 'cuda_oom'\npattern = 'x'\nweight = 1000"), "weight is 1000"),
        (rule("cause = 'cuda_oom'\npattern = 'x'\nvictim_of = ['nobody']"), "victim_of names 'nobody'"),
        (rule("outcome = 'FailJob'\nmetric = {pattern = 'x', op = '<'}"), "needs one group"),
        (rule("outcome = 'FailJob'\nmetric = {pattern = '(x)', op = '~'}"), "metric.op is '~'"),
        (rule("cause = 'cuda_oom'\npattern = 'x'") * 2, "two rules are called 'mine'"),
    ],
)
def test_a_wrong_pack_is_refused_with_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError, match=r"mine\.toml") as caught:
        read_pack(pack(tmp_path, text), own=True)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize(
    "line",
    [
        "exit_code = 'x'", "exit_code = [1.5]", "signal = true", "min_count = 'a'", "min_count = 0", "ignore_case = 3",
        "advice = 3", "hit = 3", "hit = [3]", "metric = {pattern='(x)', op='<', value='a'}",
        "metric = {pattern='(x)', op='<', times=0}", "fallback = 'x'", "weight = true", "confidence = 7",
        "retryable = 'no'", "state = [3]", "node = 7", "node = '('", "reason = 4", "kind = ['a']", "action = 3",
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_kind_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"mine\.toml") as caught:
        read_pack(pack(tmp_path, f"[[rule]]\nid = 'mine'\ncause = 'cuda_oom'\npattern = 'flux'\n{line}\n"), own=True)
    assert line.split(maxsplit=1)[0] in str(caught.value)


@pytest.mark.parametrize("text", ["a = " + "[" * 3000, "# " + "x" * (1 << 20), "[[rule]]\nid='a'\n" * 2001, "\x00"])
def test_a_hostile_file_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"mine\.toml"):
        read_pack(pack(tmp_path, text), own=True)


def test_patterns_that_backtrack_for_ever_are_found_in_bounded_time(tmp_path: Path) -> None:
    from slurmtrain.cli.rules import _holds, search_in_time

    text = (
        "[[rule]]\nid = 'a'\ncause = 'cuda_oom'\npattern = '^(a+)+$'\n"
        "[[rule]]\nid = 'b'\ncause = 'cuda_oom'\npattern = 'Error (\\w+\\s?)+:$'\n"
        f"miss = ['Error {'x' * 60}']\n"
    )
    found = read_pack(pack(tmp_path, text), own=True)
    slow = {item.rule for item in find_problems([found], search_in_time) if item.kind == "slow"}
    assert slow == {"a", "b"}
    assert not _holds(found, found.examples[0])


def test_a_missing_pack(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        load_packs([tmp_path / "nothing"])


def test_bundled_packs_have_no_problem() -> None:
    problems = [item for item in find_problems(load_packs()) if item.kind != "slow"]
    assert [item for item in problems if item.kind in ("shadowed", "example")] == []


def test_every_bundled_example_holds() -> None:
    from slurmtrain.cli.rules import _holds

    for item in load_packs():
        for example in item.examples:
            assert _holds(item, example), (item.name, example)


def test_hidden_and_shadowed_rules_are_reported(tmp_path: Path) -> None:
    text = (
        "[[rule]]\nid = 'all'\ncause = 'config_error'\npattern = 'flux'\nhit = ['flux']\nmiss = ['x']\n"
        "[[rule]]\nid = 'late'\ncause = 'cuda_oom'\npattern = 'flux capacitor'\nhit = ['flux capacitor']\n"
        "[[rule]]\nid = 'quota'\ncause = 'cuda_oom'\npattern = 'flux quota'\n"
    )
    packs = load_packs([pack(tmp_path, text)])
    kinds = {(item.rule, item.kind) for item in find_problems(packs)}
    assert {("late", "hidden"), ("quota", "shadowed"), ("quota", "example")} <= kinds


def test_a_users_rule_comes_first_and_the_first_wins(tmp_path: Path) -> None:
    text = (
        "[[rule]]\nid = 'first'\ncause = 'license_unavailable'\npattern = 'flux capacitor'\n"
        "[[rule]]\nid = 'second'\ncause = 'config_error'\npattern = 'flux'\n"
    )
    rules = load_rules([pack(tmp_path, text)])
    log = b"GPU 3 is lost\nthe flux capacitor is empty\n"
    answer = diagnose(FAILED, [scan_bytes(log, rules)])
    assert (answer.cause, answer.rule, answer.line) == ("license_unavailable", "first", 2)


@pytest.mark.parametrize(("outcome", "retryable"), [("FailJob", False), ("Count", True), ("Ignore", True)])
def test_outcomes(tmp_path: Path, outcome: str, retryable: bool) -> None:
    rules = load_rules([pack(tmp_path, f"[[rule]]\nid = 'o'\noutcome = '{outcome}'\npattern = 'flux'\n")])
    answer = diagnose(FAILED, [scan_bytes(b"GPU 3 is lost\nflux\n", rules)])
    assert (answer.cause, answer.outcome, answer.retryable) == ("gpu_lost", outcome, retryable)


def test_a_rule_has_its_own_advice(tmp_path: Path) -> None:
    text = "[[rule]]\nid = 'a'\ncause = 'config_error'\npattern = 'flux'\nadvice = 'Ask Marty.'\n"
    rules = load_rules([pack(tmp_path, text)])
    assert diagnose(FAILED, [scan_bytes(b"flux\n", rules)]).advice == "Ask Marty."


def test_rules_on_facts(tmp_path: Path) -> None:
    text = "[[rule]]\nid = 'code'\noutcome = 'FailJob'\nexit_code = [42]\nstate = ['FAILED']\n"
    rules = load_rules([pack(tmp_path, text)])
    log = scan_bytes(b"GPU 3 is lost\n", rules)
    assert diagnose(Facts(state="FAILED", exit_code=42), [log]).outcome == "FailJob"
    assert diagnose(FAILED, [log]).outcome is None


def test_exit_93_forbids_a_retry(rules: RuleSet) -> None:
    answer = diagnose(Facts(state="FAILED", exit_code=93), [scan_bytes(b"x\n", rules)])
    assert (answer.outcome, answer.retryable, answer.action) == ("FailJob", False, "stop")


def test_a_metric_rule_looks_at_the_last_values(tmp_path: Path) -> None:
    text = (
        "[[rule]]\nid = 'flat'\noutcome = 'FailJob'\n"
        "metric = {pattern = 'val_acc=([0-9.]+)', op = '<', value = 0.2, times = 3}\n"
    )
    rules = load_rules([pack(tmp_path, text)])

    def outcome(values: list[float]) -> str | None:
        log = "".join(f"epoch {at} val_acc={value}\n" for at, value in enumerate(values))
        return diagnose(FAILED, [scan_bytes(log.encode(), rules)]).outcome

    assert outcome([0.5, 0.1, 0.1, 0.1]) == "FailJob"
    assert outcome([0.1, 0.1, 0.1, 0.5]) is None
    assert outcome([0.1, 0.1]) is None


def test_a_metric_that_gets_no_better(tmp_path: Path) -> None:
    text = (
        "[[rule]]\nid = 'flat'\noutcome = 'FailJob'\n"
        "metric = {pattern = 'acc=([0-9.naN]+)', op = 'not-rising', value = 0.01, times = 3}\n"
        "[[rule]]\nid = 'stuck'\noutcome = 'FailJob'\n"
        "metric = {pattern = 'loss=([0-9.]+)', op = 'not-falling', times = 3}\n"
    )
    rules = load_rules([pack(tmp_path, text)])

    def rule_of(name: str, values: list[object], prefix: str = "") -> str | None:
        log = "".join(f"{prefix}epoch {at} {name}={value}\n" for at, value in enumerate(values))
        return diagnose(FAILED, [scan_bytes(log.encode(), rules)]).rule

    assert rule_of("acc", [0.1, 0.2, 0.2, 0.205, 0.1]) == "flat"
    assert rule_of("acc", [0.1, 0.2, 0.2, 0.22, 0.1]) is None
    assert rule_of("acc", [0.1, "nan", "nan", "nan"]) == "flat"
    assert rule_of("loss", [3, 2, 2.5, 2, 2.1]) == "stuck"
    assert rule_of("loss", [3, 2.5, 2, 1.5, 1]) is None


def test_values_are_counted_for_each_rank_and_for_the_last_launch_only(tmp_path: Path) -> None:
    text = "[[rule]]\nid = 'low'\noutcome = 'FailJob'\n"
    text += "metric = {pattern = 'acc=([0-9.]+)', op = '<', value = 1, times = 3}\n"
    rules = load_rules([pack(tmp_path, text)])

    def outcome(log: str) -> str | None:
        return diagnose(FAILED, [scan_bytes(log.encode(), rules)]).outcome

    ranks = "".join(f"[rank{rank}]: acc=0.5\n" for rank in range(8))
    assert outcome(ranks * 2) is None
    assert outcome(ranks * 3) == "FailJob"
    mark = "slurmtrain: === attempt {} launch 0 job 7 on n1 ===\n"
    assert outcome(mark.format(0) + "acc=0.5\n" * 3 + mark.format(1) + "acc=0.5\n" * 2) is None
    assert outcome(mark.format(0) + "acc=5\n" + mark.format(1) + "acc=0.5\n" * 3) == "FailJob"


@pytest.mark.parametrize(
    ("condition", "matching", "other"),
    [
        ("exit_code = [42, 43]", Facts(state="FAILED", exit_code=43), Facts(state="FAILED", exit_code=44)),
        ("exit_code = 42", Facts(state="FAILED", exit_code=1, derived_exit_code=42), FAILED),
        ("exit_code = 42", Facts(state="FAILED", exit_code=1, rank_exits=(RankExit(3, "n1", 42, None),)), FAILED),
        ("signal = [7]", Facts(state="FAILED", exit_code=0, signal=7), Facts(state="FAILED", exit_code=7)),
        ("state = ['TIMEOUT']", Facts(state="TIMEOUT"), FAILED),
        ("reason = 'Assoc.*Limit'", Facts(state="FAILED", exit_code=1, reason="AssocGrpGRES Limit"), FAILED),
        (
            "node = '^gpu1[0-9]$'",
            Facts(state="FAILED", exit_code=1, nodes=("a", "gpu12")),
            Facts(state="FAILED", exit_code=1, nodes=("gpu2",)),
        ),
        (
            "exit_code = 42\nnode = 'n1'",
            Facts(state="FAILED", exit_code=42, nodes=("n1",)),
            Facts(state="FAILED", exit_code=42, nodes=("n2",)),
        ),
    ],
)
@pytest.mark.parametrize("decides", ["outcome = 'FailJob'", "cause = 'license_unavailable'"])
def test_every_condition_on_facts(condition: str, matching: Facts, other: Facts, decides: str, tmp_path: Path) -> None:
    rules = load_rules([pack(tmp_path, f"[[rule]]\nid = 'mine'\n{decides}\n{condition}\n")])
    for logs in ([], [scan_bytes(b"GPU 3 is lost\n", rules)]):
        assert diagnose(matching, logs, rules).rule == "mine"
        assert diagnose(other, logs, rules).rule != "mine"


def test_a_rule_set_survives_json(tmp_path: Path) -> None:
    text = (
        "[[rule]]\nid = 'm'\noutcome = 'Count'\nmetric = {pattern = 'a=(\\\\d+)', op = '>', value = 2}\n"
        "[[rule]]\nid = 'p'\ncause = 'cuda_oom'\npattern = ['flux', 'warp']\nexit_code = 3\n"
    )
    rules = load_rules([pack(tmp_path, text.replace("\\\\", "\\\\"))])
    assert RuleSet.from_json(rules.to_json()).rules == rules.rules
    with pytest.raises(ValueError, match="frozen"):
        RuleSet.from_json("[]")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("CUDA out of memory", {"cuda out of memory"}),
        ("(?:flux|warp) drive failed", {" drive failed"}),
        ("[Ee]rror code (?:zulu|yankee)", {"error code "}),
        ("zulu{2,}|yankee", {"zul", "yankee"}),
        (r"\d+ \w+", set()),
        ("(?:optional)?", set()),
    ],
)
def test_literals(pattern: str, words: set[str]) -> None:
    assert set(find_literals(pattern)) == words


def test_the_rules_that_the_documentation_shows(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "rules.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    rules = load_rules([pack(tmp_path, block, f"{at}.toml") for at, block in enumerate(blocks)])

    def rule_of(log: str, facts: Facts = FAILED) -> tuple[str | None, str | None]:
        answer = diagnose(facts, [scan_bytes(log.encode(), rules)], rules)
        return answer.rule, answer.outcome

    assert rule_of("E solver: no seat for feature hpc\n") == ("our-licence", None)
    assert rule_of("x\n", Facts(state="FAILED", exit_code=43)) == ("never-again", "FailJob")
    assert rule_of("val_acc=0.3\n" + "val_acc=0.1\n" * 20)[1] == "FailJob"
    assert rule_of("val_acc=0.5\n" + "val_acc=0.5005\n" * 20) == ("no-better", "FailJob")
    assert rule_of("loss 101.5\n" * 49 + "loss inf\n") == ("diverged", "FailJob")
    machine = Facts(state="FAILED", exit_code=17, nodes=("gpu12",))
    assert rule_of("x\n", machine) == ("bad-machines", "Ignore")
