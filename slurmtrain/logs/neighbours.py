"""The lines around a match, of the same rank, and what they say about an exception."""

from __future__ import annotations

import re

from slurmtrain.logs.lines import split_prefix
from slurmtrain.logs.match_line import MILD, PROOF

CONTEXT = 6144
AHEAD = 1536

Stream = tuple[int | None, int | None, int | None]

_TRACEBACK = "Traceback (most recent call last)"
_CAUGHT = re.compile(
    r"(?i)exception ignored in|--- logging error ---|error in atexit|never retrieved|\bretry(?:ing)?\b"
    r"|\bskip(?:ping|ped)?\b|\bignor(?:ing|ed)\b|(?<!has been )\bcaught\b|falling back"
    r"|\bwarn(?:ing)?\b.*(?:fail|error|exception)|non-fatal"
)
_DURING = "During handling of the above exception"


def read_context(data: bytes, stream: Stream, *, before: bool) -> str:
    """The lines around, of the same stream where streams are marked."""
    text = data.decode("utf-8", "backslashreplace").replace("\r", "\n")
    lines = text.split("\n")
    if before and len(lines) > 1:
        lines = lines[1:] if len(data) >= CONTEXT else lines
    if stream == (None, None, None):
        return "\n".join(lines)
    kept = []
    for item in lines:
        peeled = split_prefix(item)
        if peeled.stream in (stream, (None, None, None)):
            kept.append(peeled.body)
    return "\n".join(kept)


def judge_exception(weight: int, before: str, after: str) -> tuple[int, bool]:
    """Whether the traceback that ends here was fatal: lower the weight of a caught one, mark a chained one."""
    at = before.rfind(_TRACEBACK)
    handled = _DURING in after[:600]
    if handled:
        weight -= 12
    if at < 0:
        return weight - (0 if 'File "' in before or 'File \\"' in before else 8), handled
    lead = before[:at].rstrip("\n ").rsplit("\n", 1)[-1]
    if _CAUGHT.search(lead[-300:]):
        weight = min(weight, MILD) if weight < PROOF else weight - 30
    return weight, handled
