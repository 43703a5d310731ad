"""Which names of variables, options and keys stand for secrets. Pure.

A training log is full of names that only look the part (``num_tokens=4096``, ``pad_token: </s>``, ``missing keys``), so
names are read word by word, and doubtful ones count only with a value that looks random.
"""

from __future__ import annotations

import enum
import math
import re
from collections import Counter

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SURE = re.compile(
    r"passw(or)?d|passphrase|passcode|sshpass|secret|credential|bearer|jwt|webhook|netrc|(?<![a-z])authorization"
    r"|(api|access|private|secret|encryption|encrypt|signing|account|shared|ssh|client|auth|license|deploy|master|storage"
    r"|subscription|wandb|comet|neptune|mlflow|openai|anthropic|clearml|ngc|dd)_?keys?(?![a-z])"
    r"|(api|auth|access|refresh|bearer|session|security|bot|oauth|hub|id|csrf|hf|github|gitlab|wandb|login|user|admin"
    r"|deploy|private|personal|registry|jupyter|vault|slack|write|read)_?tokens?(?![a-z])"
)
_DOUBTFUL = frozenset(
    {
        "key",
        "keys",
        "token",
        "auth",
        "pass",
        "pwd",
        "pat",
        "cookie",
        "cookies",
        "sas",
        "signature",
        "sig",
        "dsn",
        "salt",
    }
)
# "token" and "key" beside one of these is a matter of models, data and caches.
_HARMLESS_BESIDE = frozenset(
    {
        "pad", "bos", "eos", "unk", "sep", "cls", "mask", "special", "image", "video", "audio", "next", "last", "first",
        "per", "each", "stop", "end", "start", "begin", "prefix", "suffix", "fim", "num", "max", "min", "n", "total",
        "input", "output", "prompt", "unexpected", "new", "added", "extra", "text", "decoder", "encoder", "forced",
        "sort", "cache", "primary", "foreign", "state", "dict", "rng", "prng", "missing", "public", "query", "group",
        "shard", "map", "row", "value", "padding", "attn", "attention", "metric", "loss", "forward", "backward", "two",
        "column", "label", "feature", "partition", "index", "tensor", "param", "parameter", "module", "monitor",
    }
)  # fmt: skip
# What follows the secret's word makes the value something about the secret: a place, a size, a switch.
_ABOUT = frozenset(
    {
        "name", "names", "path", "paths", "file", "files", "filename", "dir", "folder", "location", "url", "uri",
        "endpoint", "host", "port", "type", "length", "len", "size", "count", "enabled", "disabled", "required",
        "expiry", "expires", "ttl", "timeout", "provider", "helper", "store", "sock", "format", "error", "version",
        "mode", "policy", "algorithm", "created", "ids", "index", "embedding", "embeddings", "dropout", "position",
        "bytes", "dim", "dtype", "shape", "weight", "bias", "proj", "norm", "cache", "limit", "rate", "sha256", "ring",
    }
)  # fmt: skip
_TRIVIAL = re.compile(
    r"\*+|none|\(?null\)?|nil|true|false|yes|no|on|off|undefined|unset|set|empty|optional|required|\[?redacted\]?|\[?masked\]?"
    r"|<[^<>]{0,60}>|\[[A-Z]{2,8}\]|\$[A-Za-z_]\w*|\$?\{[^{}]{0,60}\}|%\(?\w*\)?[sr]|x{3,}|\.{2,}",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?%?")
_PATH = re.compile(r"(~|\.{1,2})?/[a-z0-9_][a-z0-9_.-]{0,30}/[\w./ @+=:-]*")  # base64 rarely begins like a folder
_HEX = re.compile(r"[0-9a-fA-F]+")
_UUID = re.compile(r"(GPU-|MIG-)?[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DIGIT_AND_LETTER = re.compile(r"(?=.*\d)(?=.*[A-Za-z])")


class Suspicion(enum.Enum):
    """How surely a name stands for a secret."""

    NONE = 0
    DOUBTFUL = 1  # only with a value that looks random, or where the name is that of a variable
    SURE = 2


def suspicion(name: str) -> Suspicion:
    """What the name of a variable (``HF_TOKEN``), an option (``--api-key``) or a key (``clientSecret``) tells."""
    words = [word.lower() for word in _WORD.findall(name[-200:])]
    if not words:
        return Suspicion.NONE
    webhook = "webhook" in words
    if words[-1] in _ABOUT and not webhook:
        return Suspicion.NONE
    if _SURE.search("_".join(words)) and not _HARMLESS_BESIDE.intersection(words[:-1]) - {"public"}:
        return Suspicion.SURE
    if not any(_is_doubtful(word) for word in words) or name in ("PWD", "OLDPWD"):
        return Suspicion.NONE
    return Suspicion.NONE if _HARMLESS_BESIDE.intersection(words) else Suspicion.DOUBTFUL


def _is_doubtful(word: str) -> bool:
    return word in _DOUBTFUL or (len(word) > 5 and word.endswith(("token", "apikey", "pass")))


def is_trivial(value: str, *, numbers: bool) -> bool:
    """Whether a value cannot be a secret: nothing, a placeholder, a switch; with ``numbers`` a number, too."""
    text = value.strip()
    return len(text) < 2 or bool(_TRIVIAL.fullmatch(text)) or (numbers and bool(_NUMBER.fullmatch(text)))


def is_path(value: str) -> bool:
    """Whether a value is the place of a secret rather than one."""
    return bool(_PATH.fullmatch(value)) or value.startswith(("unix:/", "file:/"))


def looks_random(value: str) -> bool:
    """Whether a value looks made by a generator, and is no hash, UUID, path or dotted name."""
    if len(value) < 16 or _UUID.fullmatch(value) or _HEX.fullmatch(value) or is_path(value):
        return False
    longest = max(re.split(r"[^A-Za-z0-9+=]+", value), key=len)
    return len(longest) >= 12 and bool(_DIGIT_AND_LETTER.match(longest)) and _entropy(longest) >= 3.0


def _entropy(text: str) -> float:
    """Bits per character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())
