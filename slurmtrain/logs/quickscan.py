"""The quick filter with the standard library alone: each kind of line is searched once.

Training logs repeat: lines that differ only in their numbers are one kind. Digits are taken out of the text and of the
literals; a kind of line in which no literal is left cannot hold one, whatever its digits. Only new kinds are searched
with the slow pattern, so that a log of progress lines is read at the speed of `bytes.translate`, `split` and `set`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from slurmtrain.logs.matcher import Matcher, prefix_free, trie_of

_DIGITS = b"0123456789"
SHORTEST = 3
MOST_KINDS = 20_000  # of each sort; with LONGEST_KIND at most some tens of MB, and then it starts anew
LONGEST_KIND = 1_000


class QuickFinder:
    """Finds what the matcher's filter finds, for one log after another."""

    def __init__(self, matcher: Matcher) -> None:
        words = [word.encode() for word in matcher.words]
        bare = {word: word.translate(None, _DIGITS) for word in words}
        self._filter = matcher.filter
        self._numeric = [word for word in words if len(bare[word]) < SHORTEST]
        kept = prefix_free({bare[word].decode() for word in words if len(bare[word]) >= SHORTEST})
        self._bare = re.compile(trie_of(kept).encode()) if kept else re.compile(b"(?!)")
        self._plain: set[bytes] = set()
        self._suspect: set[bytes] = set()

    def __call__(self, data: bytes) -> Iterator[int]:
        """Where literals begin, in order; at least the first of every line that holds one."""
        lowered = data.lower()
        if b"\r" in lowered:
            lowered = lowered.replace(b"\r", b"\n")
        kinds = lowered.translate(None, _DIGITS).split(b"\n")
        suspect = self._sort_out(set(kinds))
        found = list(self._within(lowered, kinds, suspect)) if suspect else []
        numeric = [at for word in self._numeric for at in _all_of(word, lowered)]
        return iter(sorted((*found, *numeric)) if numeric else found)

    def _sort_out(self, kinds: set[bytes]) -> set[bytes]:
        """Those kinds that may hold a literal."""
        suspect = kinds & self._suspect
        new = kinds - self._plain - suspect
        if len(self._plain) > MOST_KINDS or len(self._suspect) > MOST_KINDS:
            self._plain.clear()
            self._suspect.clear()
        search = self._bare.search
        bad = {kind for kind in new if search(kind)}
        self._suspect.update(kind for kind in bad if len(kind) <= LONGEST_KIND)
        self._plain.update(kind for kind in new - bad if len(kind) <= LONGEST_KIND)
        return suspect | bad

    def _within(self, lowered: bytes, kinds: Iterable[bytes], suspect: set[bytes]) -> Iterator[int]:
        at = 0
        for kind, line in zip(kinds, lowered.split(b"\n"), strict=True):
            if kind in suspect:
                for hit in self._filter.finditer(line):
                    yield at + hit.start()
            at += len(line) + 1


def _all_of(word: bytes, text: bytes) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)
