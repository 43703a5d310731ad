"""Whether a line shows that a training goes on, and what its step and its loss are."""

from __future__ import annotations

import re

HINTS = re.compile(
    rb"it/s|s/it|loss|epoch|step|iter|batch|updat|eta[:=]|samples/s|tokens/s|finish|complet|done train|ing done"
    rb"|runtime|now trained"
)

_BAR = re.compile(r"(?<!\d)\d{1,12}/\d{1,12} \[\d|\d(?:it/s|s/it)\b")
_BYTES_BAR = re.compile(r"\d\.? ?[kMGT]?i?B/s")
_COUNTER = re.compile(
    r"(?i)\b(?:epochs?|steps?|iter(?:ation)?s?|batch|(?:num_)?updates?|global_step|ep\.|up\.|it)\b\W{0,6}\d"
    r"|\[ ?\d+/ ?\d+\]|\b\d+/\d+\b"
)
_METRIC = re.compile(
    r"(?i)(?:loss|ppl|perplexity|acc|accuracy|gnorm|grad[_ ]norm|\blr|learning[_ ]rate|samples/s\w*|tokens/s\w*|\bwps"
    r"|\beta|\bcost|throughput|step time|time)[\w/ .(]{0,24}['\"]?\s{0,3}[:=]?\s{0,8}['\"]?[-+]?(?:\d|nan|inf)"
)
_BAD = re.compile(
    r"(?i)\b(?:[a-z]*error|exception|fatal|failed|failure|traceback|killed|abort(?:ed|ing)?|retry(?:ing)?)\b"
)
_STEP = re.compile(
    r"(?i)\b(?:global_step|steps?|iter(?:ation)?s?|(?:num_)?updates?)\b[\s:=#\[(/'\"]{0,6}(\d{1,12})\b"
    r"|\b(\d{1,12})/\d{1,12} \[\d"
)
_FINISHED = re.compile(
    r"(?i)\bdone training\b|\bis now trained\b|"
    r"\b(?:training|finetuning|fine-tuning|evaluation|run|job|experiment|pretraining)\b"
    r"[^.:,]{0,60}?\b(?:is )?(?:complete[d]?|finished|done)\b(?! with (?:error|exit))|\bfinished training\b"
    r"|'?train_runtime'?\W|"
    r"^\W{0,3}(?:all )?(?:done|finished)\W{0,4}$|\bworker group successfully finished\b|"
    r"\bmax_steps=?\d* reached|\bsuccessfully (?:completed|finished)\b"
)
_LOSS = re.compile(
    r"(?i)(?<!\w)(?:\w{1,12}[ _/.-])?loss['\"]?\s{0,3}[:=|]?\s{0,8}(?:tensor\()?['\"]?"
    r"([-+]?(?:nan|inf(?:inity)?|\d[\d.]*(?:e[-+]?\d+)?))(?!\w)"
)


def is_progress(body: str) -> bool:
    """Whether the line (without prefixes) reports a step of a training: a counter and a value, or a progress bar."""
    head = body[:2000]
    if _BAD.search(head) or head.startswith("{'train_runtime'"):  # the latter is the end of a training
        return False
    if _BAR.search(head):
        return _BYTES_BAR.search(head) is None
    if head.startswith("{'loss'"):
        return True
    return _COUNTER.search(head) is not None and _METRIC.search(head) is not None


def is_finished(body: str) -> bool:
    """Whether the line says that the training came to its end."""
    head = body[:400]
    return _FINISHED.search(head) is not None and _BAD.search(head) is None


def loss_of(body: str) -> float | None:
    """The first loss value of a line: a number, nan or inf; None without one."""
    found = _LOSS.search(body[:2000])
    if found is None:
        return None
    try:
        return float(found.group(1).rstrip("."))
    except ValueError:
        return None


def step_of(body: str) -> int | None:
    """The step that a line of progress names (``step 120/500 loss 0.1``, ``120/500 [00:10<…``); epochs are no steps."""
    if not is_progress(body):
        return None
    found = _STEP.search(body[:2000])
    return int(found[1] or found[2]) if found else None
