"""The standard library's quick filter finds what the plain search finds, in bounded memory."""

from __future__ import annotations

import random
import tracemalloc

from slurmtrain.core.rules import Rule, RuleSet
from slurmtrain.logs.matcher import matcher_of
from slurmtrain.logs.quickscan import MOST_KINDS, QuickFinder

from .conftest import Case


def plain(rules: RuleSet, data: bytes) -> set[int]:
    return {found.start() for found in matcher_of(rules).filter.finditer(data.lower())}


def test_every_literal_is_found_at_the_same_place(corpus: list[Case], rules: RuleSet) -> None:
    finder = QuickFinder(matcher_of(rules))
    source = random.Random(7)
    for case in corpus:
        data = case.log.read_bytes()
        for text in (data, bytes(source.choice((letter, letter, letter, 13, 10, 55)) for letter in data[:20_000])):
            found = list(finder(text))
            assert found == sorted(found)
            assert plain(rules, text) <= set(found), case.name


def test_a_literal_of_digits_is_found_whatever_stands_beside_it() -> None:
    words = ("100%", "a6000", "[errno 28]", "signal 4 (")
    rules = RuleSet.of(Rule(word, "unknown", patterns=("x",), literals=((word,),)) for word in words)
    finder = QuickFinder(matcher_of(rules))
    text = b"1\nstep 1 [Errno 27] of A600\nstep 2 [ERRNO 28] x\n 100% \r A6000\nsignal 14 (\nsignal 4 (\n"
    assert set(finder(text)) == plain(rules, text) != set()


def test_memory_is_bounded_when_no_line_is_like_another(rules: RuleSet) -> None:
    finder = QuickFinder(matcher_of(rules))
    source = random.Random(3)
    letters = b"abcdefghijklmnopqrstuvwxyz "

    def chunk(lines: int) -> bytes:
        return b"\n".join(bytes(source.choices(letters, k=60)) for _ in range(lines))

    tracemalloc.start()
    for _ in range(6):
        list(finder(chunk(MOST_KINDS // 2)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20
