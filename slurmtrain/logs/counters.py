"""Which of the counters in a training's output counts its steps: beside it stand bars of evaluations and of epochs.

srun hands on what has no end of line by the kilobyte, and puts its label there: a bar's line may begin with the
``20/500`` of what was ``120/500``, or with the ``2:`` of ``Epoch 12:``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slurmtrain.logs.progress import step_of

Counter = tuple[int, int]  # how it tells, where it ends (0: not told)
_MOST = 10**12
_BARS, _EPOCHS, _WORDS = range(3)  # the plainer the better
_OF = re.compile(
    r"(?i)\b(?:global_step|steps?|iter(?:ation)?s?|(?:num_)?updates?)\b[\s:=#\[('\"]{0,6}\d{1,12}\s{0,12}(?:/|of)\s{0,12}(\d{1,12})\b"
)
_BAR = re.compile(r"\b(\d{1,12})/(\d{1,12}) \[[\d:]{4,9}<")
# "Epoch 2:  50%|██ | 8/16 [00:01<…" of Lightning, which counts epochs from 0; with "/10" behind it, from 1.
_EPOCH_BAR = re.compile(
    r"(?i)^\W{0,8}epoch\W{0,4}(\d{1,9})(?:/(\d{1,9}))?\W{0,4}:.{0,200}?\b(\d{1,12})/(\d{1,12}) \[[\d:]{4,9}<"
)
_OF_AN_EPOCH = re.compile(r"(?i)^\W{0,8}epoch\W{0,4}\d{1,9}(?:/\d{1,9})?\W{0,4}:")
# "Epoch 3/10" on a line of its own, and then "12/32 ━━━ 0s 5ms/step - loss: 0.5" of Keras.
_KERAS_EPOCH = re.compile(r"^\s{0,4}Epoch (\d{1,9})/(\d{1,9})\s{0,4}$")
_KERAS = re.compile(r"^\W{0,8}(\d{1,12})/(\d{1,12})\W")
_ASIDE = re.compile(r"(?i)^\W{0,8}(?:validat|sanity|evaluat|test(?:ing)?\b|predict)")


@dataclass(frozen=True, slots=True)
class Count:
    """What one line counts: ``step`` of ``target`` (None: not told). Lines of one counter agree in ``counter``."""

    step: int
    target: int | None
    counter: Counter


class CountReader:
    """Reads the lines of one output in their order: Keras tells the epoch in a line before."""

    def __init__(self) -> None:
        self._epoch: tuple[int, int] | None = None

    def read(self, body: str) -> Count | None:
        """What this line (without prefixes) counts; None where it counts no steps of a training."""
        if header := _KERAS_EPOCH.match(body):
            self._epoch = (int(header[1]), int(header[2]))
            return None
        if _ASIDE.match(body):
            return None
        if bar := _EPOCH_BAR.match(body):
            epochs = int(bar[2]) if bar[2] else None
            return _within(int(bar[1]) - (epochs is not None), epochs, int(bar[3]), int(bar[4]))
        if keras := _KERAS.match(body):
            if self._epoch is None or "/step" not in body:
                return None
            return _within(self._epoch[0] - 1, self._epoch[1], int(keras[1]), int(keras[2]))
        step = None if _OF_AN_EPOCH.match(body) else step_of(body)
        if step is None:
            return None
        words, bar = _OF.search(body), _BAR.search(body)
        target = int(words[1]) if words is not None else int(bar[2]) if bar is not None else None
        return Count(step, target, (_BARS if words is None and bar is not None else _WORDS, target or 0))


def _within(epoch: int, epochs: int | None, batch: int, batches: int) -> Count | None:
    """A batch of an epoch, which is counted from 0, among those of the whole training."""
    step, target = epoch * batches + batch, epochs * batches if epochs is not None else None
    if epoch < 0 or batch > batches or max(step, target or 0) > _MOST:
        return None
    return Count(step, target, (_EPOCHS, target or batches))


def count_plainly(step: int, target: int | None) -> Count:
    """Of a training that tells its step by name, as in JSON."""
    return Count(step, target, (_WORDS, target or 0))


def choose_counters(counts: Iterable[Count]) -> set[Counter]:
    """Those that count a training's steps, by what the lines count, oldest first; none where each begins anew.

    One that begins anew counts something else over and over: the batches of an epoch, of an evaluation. Beside words
    that tell no end a bar may do.
    """
    series: dict[Counter, list[int]] = {}
    for count in counts:
        series.setdefault(count.counter, []).append(count.step)
    steady = {counter: steps[-1] for counter, steps in series.items() if not _begins_anew(steps)}
    best = max(steady, default=None)
    if best is None:
        return set()
    bars = [counter for counter in steady if counter[0] != _WORDS and counter[1] >= steady[best]]
    return {best, max(bars)} if best == (_WORDS, 0) and bars else {best}


def _begins_anew(steps: Sequence[int]) -> bool:
    """Whether a counter fell to its beginning; ranks that are a few steps apart do not look like that."""
    falls = (at for at, (before, after) in enumerate(pairwise(steps)) if after * 2 < before and before > 4)
    return any(not _is_cut(*steps[at : at + 3]) for at in falls)


def _is_cut(before: int, step: int, after: int = -1) -> bool:
    """Whether ``step`` is the end of a number from ``before`` to ``after``, whose beginning was cut off."""
    unit: int = 10 ** len(str(step))
    return before + (step - before) % unit <= after
