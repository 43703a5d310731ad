"""Masking of secrets in what is kept, shown or sent: texts, environments, logs of any size.

What is masked: values of names that stand for secrets (``HF_TOKEN=…``, ``--api-key …``, ``"password": "…"``), what
looks like a secret whatever it is called (keys of the known services, private keys, credentials in a URL), and the
values that the secret variables of the launch have, wherever they occur. Nothing here opens a file of its own.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO
from urllib.parse import quote, quote_plus

from slurmtrain.evidence.secret_names import Suspicion, is_path, is_trivial, looks_random, suspicion
from slurmtrain.evidence.secret_patterns import (
    ASSIGNMENT,
    COLOUR,
    KEYWORD,
    OPTION,
    PEM,
    PEM_LINE,
    QUOTE,
    SHAPES,
    VALUES,
)

MASK = "***"
_MIN_KNOWN = 6  # characters: a shorter value occurs by chance
_PIECE = 4096  # of a known value; a longer one is looked for in pieces
_NAME_CHARS = re.compile(r"[\w.-]{0,80}\Z", re.ASCII)
_JUDGED = 160  # characters of a value; all of it is masked
_CODE = re.compile(r"(?:[A-Za-z_]\w*\.){1,4}")
_URL = re.compile(r"[a-z][a-z0-9+.-]{1,20}://", re.IGNORECASE)
_PEM_REACH = 1 << 18  # characters behind a BEGIN line in which bare base64 is part of the key, whatever is between
_WINDOW = 1 << 18
_OVERLAP = 1 << 14  # more than any pattern but that of a value can span
_SECRET_ENDS = re.compile(r"[\s\"'&\0]")

Span = tuple[int, int, int]  # where the context begins, the secret begins, the secret ends


class Masker:
    """Masks texts and byte streams; knows the values of the secret variables that it was given."""

    def __init__(self, environ: Mapping[str, str] | None = None, known: Iterable[str] = ()) -> None:
        values = set(known) | (find_secret_values(environ) if environ else set())
        self._known = _known_pattern({v for value in values for v in _forms(value)})
        # the streams are read as latin-1, one character per byte
        self._known_bytes = _known_pattern({_as_latin(v) for value in values for v in _forms(value)})

    def text(self, text: str) -> str:
        """The text with ``***`` in the place of every secret."""
        spans, _ = _find_spans(text, self._known, 0)
        return _replace(text, spans)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables, those with secrets masked as a whole or in the part that is one."""
        return {name: MASK if is_secret(name, value) else self.text(value) for name, value in environ.items()}

    def arguments(self, argv: Iterable[str]) -> list[str]:
        """A command line; a value that follows ``--token`` is seen, and what a program's own ``-p`` means."""
        words = list(argv)
        together = self.text("\0".join(words)).split("\0")
        shown: list[str] = []
        option = ""
        for argument, masked in zip(words, together if len(together) == len(words) else words, strict=True):
            whole = masked.startswith(MASK) or bool(option and is_secret(option, argument))
            shown.append(MASK if whole else self.text(masked))
            option = argument.lstrip("-") if argument.startswith("-") and "=" not in argument else ""
        return shown

    def json(self, value: object) -> object:
        """Parsed JSON, masked below its names; the shape stays."""
        if isinstance(value, dict):
            return {name: self._member(str(name), item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            texts = all(isinstance(item, str) for item in value)
            return self.arguments(value) if texts and value else [self.json(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _member(self, name: str, value: object) -> object:
        if isinstance(value, str):
            return MASK if is_secret(name, value) else self.text(value)
        return self.json(value)

    def stream(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The masked bytes of a stream, in bounded memory; a secret is found wherever the chunks are cut."""
        window = _Window(self._known_bytes)
        for chunk in chunks:
            for at in range(0, len(chunk), _WINDOW):
                yield window.push(chunk[at : at + _WINDOW])
        yield window.finish()

    def copy(self, source: BinaryIO, target: BinaryIO, limit: int | None = None) -> int:
        """Copy a file masked; at most ``limit`` bytes of it. Returns the bytes written."""
        return sum(target.write(data) for data in self.stream(_read(source, limit)))


def mask(text: str, known: Iterable[str] = ()) -> str:
    """The text with ``***`` in the place of every secret; ``known`` are values to find wherever they occur."""
    return Masker(known=known).text(text)


def mask_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with their secrets masked, the values of one found in another too."""
    return Masker(environ).environment(environ)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable of this name and value is a secret as a whole."""
    level = suspicion(name)
    if level is Suspicion.NONE or is_trivial(value, numbers=level is not Suspicion.SURE) or is_path(value):
        return False
    return not _is_url(name, value)


def _is_url(name: str, value: str) -> bool:
    """Whether the value is a URL, in which only a part is secret; all of a webhook is."""
    return bool(_URL.match(value)) and "webhook" not in name.lower()


def find_secret_values(environ: Mapping[str, str]) -> set[str]:
    """The values, and parts of values, that masking an environment would hide."""
    values = set()
    for name, value in environ.items():
        if is_secret(name, value):
            if suspicion(name) is Suspicion.SURE or not value.isalpha():  # a plain word would spoil a log
                values.add(value)
            continue
        spans, _ = _find_spans(value, None, 0)
        for _, start, end in spans:
            values.update(_parts_of(value[start:end]))
    return {value for value in values if not is_trivial(value, numbers=False)}


def _parts_of(secret: str) -> set[str]:
    """What of a masked part counts elsewhere: of ``user:password`` the password."""
    user, colon, password = secret.partition(":")
    return {secret, password} if colon and user else {secret}


# -- finding -----------------------------------------------------------------------------------------------------------


def _find_spans(text: str, known: re.Pattern[str] | None, pem_left: int) -> tuple[list[Span], int]:
    """Every secret, in no order, and how far behind this text an open private key still reaches."""
    lower = text.replace("\u0130", "i").lower()  # the one letter whose lower case is longer than itself
    spans: list[Span] = []
    for shape in SHAPES:
        if any(needle in lower for needle in shape.needles):
            spans += (_span(match) for match in shape.pattern.finditer(text) if not _is_nothing(match))
    spans += _named(text, lower)
    if known is not None:
        spans += ((match.start(), match.start(), match.end()) for match in known.finditer(text))
    keys, pem_left = _private_keys(text, pem_left)
    return spans + keys, pem_left


def _span(match: re.Match[str]) -> Span:
    group = "s" if "s" in match.re.groupindex else 0
    return match.start(), match.start(group), match.end(group)


def _is_nothing(match: re.Match[str]) -> bool:
    _, start, end = _span(match)
    return is_trivial(match.string[start:end], numbers=False)


def _named(text: str, lower: str) -> Iterator[Span]:
    """Values that are secrets because of the name before them."""
    seen = 0
    for hit in KEYWORD.finditer(lower):
        if hit.start() < seen:
            continue
        before = _NAME_CHARS.search(text, max(0, hit.start() - 80), hit.start())
        begin = before.start() if before else hit.start()
        if colour := COLOUR.match(text, max(text.rfind("\x1b", max(0, begin - 24), hit.start()), 0)):
            begin = max(begin, colour.end())
        option = text.startswith("-", begin)
        assigned = ASSIGNMENT.match(text, hit.start())
        head = assigned or (OPTION.match(text, hit.start()) if option else None)
        if head is None:
            continue
        seen = head.end(1)
        start, end = _value_at(text, head.end(), _JUDGED)
        name, value, quoted = text[begin:seen], text[start:end], start > head.end()
        if _gives_away(name, head[2], value, quoted=quoted) if assigned else is_secret(name, value):
            start, seen = _value_at(text, head.end(), len(text))
            yield begin, start, seen


def _value_at(text: str, at: int, reach: int) -> tuple[int, int]:
    """Where the value begins and ends, its quotes left out."""
    opening = QUOTE.match(text, at)
    mark = opening.group() if opening else ""
    start = at + len(mark)
    value = VALUES[mark].match(text, start, min(len(text), start + reach))
    end = value.end() if value else start
    if not mark:
        end = max(start, start + len(text[start:end].rstrip(",;)]}")))
    return start, end


def _is_code(name: str, value: str) -> bool:
    """``token=token``, ``token=self.token``: the line of a traceback."""
    last = name.rpartition(".")[2]
    return value == last or (value.endswith(f".{last}") and bool(_CODE.fullmatch(value.removesuffix(last))))


def _gives_away(name: str, separator: str, value: str, *, quoted: bool) -> bool:
    """Whether ``name separator value`` in a text is a secret; prose and metrics are not."""
    level = suspicion(name)
    if level is Suspicion.NONE or is_trivial(value, numbers=level is not Suspicion.SURE) or is_path(value):
        return False
    if name.lower().endswith("authorization"):  # "Authorization: Bearer …" has a shape of its own
        return False
    if _is_url(name, value) or (not quoted and _is_code(name, value)):
        return False
    if level is Suspicion.SURE or looks_random(value):
        return True
    is_variable = "=" in separator and (name.isupper() or "token" in name.lower())
    return is_variable or (quoted and len(value) >= 8 and "token" in name.lower() and " " not in value)


def _private_keys(text: str, left: int) -> tuple[list[Span], int]:
    """The bodies of private keys; lines of other ranks may lie between their lines."""
    spans: list[Span] = []
    at = 0
    for match in PEM.finditer(text):
        if left:
            spans += _key_lines(text, at, match.start(), left)
        spans.append((match.start(), match.end(), match.end()))  # nothing to mask, but not to be cut
        left = _PEM_REACH if match["end"] == "BEGIN" else 0
        at = match.end()
    if left:
        spans += _key_lines(text, at, len(text), left)
        left = max(0, left - (len(text) - at))
    return spans, left


def _key_lines(text: str, start: int, end: int, left: int) -> Iterator[Span]:
    if "\n" not in text[start:end] and end < len(text):  # one line: its breaks are written out, as \n
        yield start, start, end
        return
    for match in PEM_LINE.finditer(text, start, min(end, start + left)):
        group = "s" if match["s"] else "t"
        yield match.start(), match.start(group), match.end(group)


# -- known values ------------------------------------------------------------------------------------------------------


def _forms(value: str) -> set[str]:
    """How a value may be written: as it is, its lines, quoted for a URL, escaped in JSON, in base64."""
    pieces = [value.strip()]
    if "\n" in value or len(value) > _PIECE:
        lines = [line.strip() for line in value.splitlines() if not PEM.search(line)]
        pieces = [line[at : at + _PIECE] for line in lines if len(line) >= 12 for at in range(0, len(line), _PIECE)]
    forms = set(pieces)
    for piece in pieces:
        plain = piece.encode("utf-8", "surrogateescape")
        forms |= {quote(plain, safe=""), quote(plain), quote_plus(plain), json.dumps(piece)[1:-1], repr(piece)[1:-1]}
        forms |= {piece.replace("/", "\\/"), base64.b64encode(plain).decode().rstrip("=")}
    return {form for form in forms if len(form) >= _MIN_KNOWN and not _is_common(form)}


def _is_common(value: str) -> bool:
    """Whether a value is so plain that masking it everywhere would spoil a log."""
    return len(value) < 16 and (value.isdigit() or (value.isalpha() and len(value) < 8))


def _known_pattern(values: Iterable[str]) -> re.Pattern[str] | None:
    ordered = sorted(values, key=lambda value: (-len(value), value))
    return re.compile("|".join(re.escape(value) for value in ordered)) if ordered else None


def _as_latin(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("latin-1")


# -- streams -----------------------------------------------------------------------------------------------------------


class _Window:
    """The part of a stream that is not yet decided on."""

    def __init__(self, known: re.Pattern[str] | None) -> None:
        self._known = known
        self._held = ""
        self._pem_left = 0
        self._inside = False  # in a secret that is longer than the window

    def push(self, data: bytes) -> bytes:
        """Take more of the stream; give what is decided."""
        text = data.decode("latin-1")
        if self._inside:
            end = _SECRET_ENDS.search(text)
            if end is None:
                return b""
            self._inside, text = False, text[end.start() :]
        self._held += text
        if len(self._held) < _WINDOW:
            return b""
        cut = len(self._held) - _OVERLAP
        line_end = max(self._held.rfind("\n", cut // 2, cut), self._held.rfind("\r", cut // 2, cut))
        return self._give(line_end + 1 if line_end > 0 else cut)

    def finish(self) -> bytes:
        """The rest, at the end of the stream."""
        return self._give(len(self._held))

    def _give(self, cut: int) -> bytes:
        spans, _ = _find_spans(self._held, self._known, self._pem_left)
        while crossing := [span[0] for span in spans if span[0] < cut < span[2]]:
            cut = min(crossing)
        if cut < len(self._held) // 2:  # a secret without an end: what follows is part of it
            cut, self._inside = len(self._held), True
        ready, self._held = self._held[:cut], self._held[cut:]
        _, self._pem_left = _private_keys(ready, self._pem_left)
        return _replace(ready, [span for span in spans if span[2] <= cut]).encode("latin-1")


def _replace(text: str, spans: Iterable[Span]) -> str:
    parts: list[str] = []
    at = 0
    for start, end in sorted((start, end) for _, start, end in spans if start < end):
        if end <= at:
            continue
        if start >= at:
            parts += [text[at:start], MASK]
        at = end
    return "".join([*parts, text[at:]])


def _read(source: BinaryIO, limit: int | None) -> Iterator[bytes]:
    left = limit
    while data := source.read(_WINDOW if left is None else min(_WINDOW, left)):
        yield data
        left = None if left is None else left - len(data)
