"""Secrets of the job that other hosts must hide too, although they may not know them.

Only the job's own environment tells the value of ``WANDB_API_KEY``; the rest of a log is sent from elsewhere. So the
agent leaves salted hashes of the values in the run directory, and words of a log that have such a hash are masked. A
value counts by its runs of letters and digits of six or more.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from slurmtrain.evidence.secrets import MASK, find_secret_values
from slurmtrain.store.publish import read_json, replace, to_json

_LEAST = 6
_WORD = re.compile(rb"[A-Za-z0-9_]{%d,}" % _LEAST)
_MAX_LINE = 1 << 20
_FILE = "known.json"
_MAX_KNOWN = 10_000


class KnownWords:
    """Hides the words that have one of these hashes."""

    def __init__(self, salt: bytes, hashes: Iterable[tuple[int, str]]) -> None:
        self._salt = salt
        self._hashes = set(hashes)
        self._lengths = {length for length, _ in self._hashes}

    def hide(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The same bytes, masked; no word is cut where a piece ends."""
        if not self._hashes:
            yield from pieces
            return
        held = b""
        for piece in pieces:
            held += piece
            cut = held.rfind(b"\n") + 1
            if not cut and len(held) > _MAX_LINE:
                cut = len(held) - 4096
                while cut > 1 and _WORD.fullmatch(held[cut - 1 : cut] * _LEAST):
                    cut -= 1
            if cut:
                yield _WORD.sub(self._replace, held[:cut])
                held = held[cut:]
        if held:
            yield _WORD.sub(self._replace, held)

    def _replace(self, match: re.Match[bytes]) -> bytes:
        word = match.group()
        if len(word) not in self._lengths or (len(word), _digest(self._salt, word)) not in self._hashes:
            return word
        return MASK.encode()


def remember_secrets(folder: Path, environ: Mapping[str, str]) -> None:
    """Add the secrets of this environment to those that are hidden on every host. Raises ``StoreError``."""
    salt, hashes = _read(folder)
    salt = salt or secrets.token_bytes(16)
    words = {
        word
        for value in find_secret_values(environ)
        for word in _WORD.findall(value.encode("utf-8", "surrogateescape"))
        if not word.isdigit() or len(word) > 8
    }
    added = hashes | {(len(word), _digest(salt, word)) for word in words}
    if added != hashes and len(added) <= _MAX_KNOWN:
        replace(folder / _FILE, to_json({"salt": salt.hex(), "words": sorted(added)}))


def read_known(folder: Path) -> KnownWords:
    """What ``remember_secrets`` left; nothing where there is no such file. Raises ``StoreError``."""
    salt, hashes = _read(folder)
    return KnownWords(salt, hashes)


def _read(folder: Path) -> tuple[bytes, set[tuple[int, str]]]:
    record = read_json(folder / _FILE) or {}
    try:
        return bytes.fromhex(record["salt"]), {(int(length), str(digest)) for length, digest in record["words"]}
    except (KeyError, TypeError, ValueError):
        return b"", set()


def _digest(salt: bytes, word: bytes) -> str:
    return hashlib.blake2b(word, key=salt, digest_size=16).hexdigest()
