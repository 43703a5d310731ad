"""What is no cause: handled exceptions, frames of tracebacks, errors after which the run said that it was done."""

from __future__ import annotations

import pytest

from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.facts import Facts
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_bytes

LIMIT = Facts(state="TIMEOUT", exit_code=0, last_output_age_s=20.0)
FAILED = Facts(state="FAILED", exit_code=1)

HANDLED = """step 10 loss 2.0 lr 1e-4
{lead}
Traceback (most recent call last):
  File "/home/u/eval.py", line 31, in plot
    import matplotlib.pyplot as plt
ModuleNotFoundError: No module named 'matplotlib'
step 20 loss 1.9 lr 1e-4
"""


@pytest.mark.parametrize(
    "lead",
    [
        "WARNING:eval:plotting failed, continuing without figures",
        "Exception ignored in: <function Loader.__del__ at 0x7f>",
        "[eval] caught an exception, skipping the figures",
    ],
)
def test_a_handled_exception_is_not_why_the_time_was_up(lead: str, rules: RuleSet) -> None:
    answer = diagnose(LIMIT, [scan_bytes(HANDLED.format(lead=lead).encode(), rules)])
    assert answer.cause == "time_limit", answer.sentence


def test_a_handled_exception_is_told_where_nothing_else_is(rules: RuleSet) -> None:
    text = HANDLED.format(lead="WARNING:eval:plotting failed").replace("step 20 loss 1.9 lr 1e-4\n", "")
    assert diagnose(FAILED, [scan_bytes(text.encode(), rules)]).cause == "import_error"


def test_the_last_word_counts_though_a_rule_knows_a_part_of_it(rules: RuleSet) -> None:
    """`worker group` is a literal of a rule that does not match this line: it must be read as the run's end."""
    text = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/home/u/train.py", line 31, in <module>\n'
        "[rank1]: ConnectionResetError: [Errno 104] Connection reset by peer\n"
        "I0412 17:20:13.1 1398 torch/distributed/elastic/agent/server/api.py:888] [default] Worker group FAILED. "
        "2/3 attempts left; will restart worker group\n"
        "step 1 loss 2.0\nstep 2 loss 1.9\n"
        "I0412 17:40:43.1 1398 torch/distributed/elastic/agent/server/api.py:899] [default] worker group successfully "
        "finished. Waiting 300 seconds for other agents to finish.\n"
    )
    assert diagnose(Facts(), [scan_bytes(text.encode(), rules)]).cause == "no_failure"


def test_line_numbers_and_paths_of_frames_are_no_evidence(rules: RuleSet) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/x/site-packages/huggingface_hub/hf_api.py", line 503, in whoami\n'
        '  File "/x/site-packages/xformers/undefined symbol: /ops.py", line 429, in f\n'
        "KeyError: 'name'\n"
    )
    assert diagnose(FAILED, [scan_bytes(text.encode(), rules)]).cause == "python_exception"


def test_a_mistake_in_the_code_is_no_consequence_of_the_time_out_that_it_caused(rules: RuleSet) -> None:
    timeout = (
        "[rank{r}]:[E1102 10:11:12.1 ProcessGroupNCCL.cpp:629] [Rank {r}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=981, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 "
        "milliseconds before timing out.\n"
    )
    raised = (
        "[rank5]: Traceback (most recent call last):\n"
        '[rank5]:   File "/home/u/data.py", line 77, in __getitem__\n'
        "[rank5]: KeyError: 'img_008812'\n"
    )
    text = "".join(timeout.format(r=rank) for rank in range(4)) + raised + timeout.format(r=6)
    answer = diagnose(FAILED, [scan_bytes(text.encode(), rules)])
    assert (answer.cause, answer.rank) == ("python_exception", 5)
