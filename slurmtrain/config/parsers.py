"""One reader for each kind of value in a job file: a node in, the typed value out, or a sentence about what is wrong.

A parser raises ``ValueError`` with what was expected; who calls it knows the key and the place.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Callable
from typing import Any, TypeAlias

from slurmtrain.config.nodes import Node, Scalar, Sequence, describe, shown
from slurmtrain.config.problems import closest
from slurmtrain.core.array import parse_array
from slurmtrain.core.spec import parse_time_limit

Parser: TypeAlias = Callable[[Node], Any]

_TRUE = {"true", "yes", "on"}
_FALSE = {"false", "no", "off"}
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "URG", "WINCH")
_SHELL_ONLY = re.compile(
    r"[|&;<>`$()*?\[\]]|\{[^}\s]*,|(?:^|\s)[~#]"
)  # what a shell would act upon and we would pass on as it is
_OPTION_PARTS = re.compile(r"--[a-z][a-z0-9_-]*(=.*)?", re.DOTALL)
MAX_TEXT = 128 * 1024  # the kernel's limit for one argument (MAX_ARG_STRLEN)


def one_line(text: str) -> str:
    """Text for a place where only one line of visible characters makes sense; raises ``ValueError``."""
    for char in text:
        if (
            unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"}
            or char in "\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
        ):
            raise ValueError(
                f"{shown(text)} holds the control character U+{ord(char):04X}; use visible characters on one line"
            )
    return text


def argument(text: str) -> str:
    """Text that can be an argument or an environment value of a process; raises ``ValueError``."""
    if "\0" in text:
        raise ValueError(f"{shown(text)} holds a NUL character, which no program can be given")
    if any(0xD800 <= ord(char) < 0xE000 for char in text):
        raise ValueError(f"{shown(text)} is not valid Unicode")
    if len(text.encode()) >= MAX_TEXT:
        raise ValueError("longer than 128 KiB, the kernel's limit for one argument")
    return text


def word(node: Node, expected: str = "a text") -> str:
    """The words of a scalar as they were written, numbers and ``no`` included; raises ``ValueError``."""
    if not isinstance(node, Scalar):
        raise ValueError(f"expected {expected}, got {describe(node)}")
    if node.is_null:
        raise ValueError(
            f"expected {expected}, got nothing"
            + ("" if not node.text else f"; for the word, write it in quotes: '{node.text}'")
        )
    return node.text


def text(expected: str = "a text", *, limit: int = 1000) -> Parser:
    """One line, not empty."""

    def parse(node: Node) -> str:
        value = one_line(word(node, expected))
        if not value.strip():
            raise ValueError(f"expected {expected}, got an empty text")
        if len(value) > limit:
            raise ValueError(f"longer than {limit} characters")
        return value

    return parse


def slurm_word(expected: str) -> Parser:
    """A name or a list of names as Slurm writes them: no white space."""
    plain = text(expected)

    def parse(node: Node) -> str:
        value = str(plain(node)).strip()
        if re.search(r"\s", value):
            raise ValueError(f"{shown(value)} has a space in it; expected {expected}")
        if value.startswith("-"):
            raise ValueError(f"{shown(value)} begins with a dash; expected {expected}")
        return value

    return parse


def array_tasks(node: Node) -> str:
    """A list of array tasks as sbatch --array takes it."""
    value = word(node, "a list of array tasks like 0-7%4").strip()
    parse_array(value)
    return value


def integer(least: int, most: int = 1_000_000) -> Parser:
    """A whole number in decimal digits within bounds."""

    def parse(node: Node) -> int:
        value = word(node, "a whole number").strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,12}", value):
            raise ValueError(f"expected a whole number, got {shown(value)}")
        number = int(value)
        if number < least:
            raise ValueError(f"must be at least {least}, got {number}")
        if number > most:
            raise ValueError(f"must be at most {most}, got {number}")
        return number

    return parse


def seconds(least: int, most: int = 30 * 86400) -> Parser:
    """Seconds as a number, or with a unit: ``90``, ``30s``, ``5m``, ``1h30m``."""

    def parse(node: Node) -> int:
        value = word(node, "seconds").strip().lower().replace(" ", "")
        if not re.fullmatch(r"(?:[0-9]{1,9}[smhd])+|[0-9]{1,9}", value):
            raise ValueError(f"expected seconds, or a duration like 30s or 5m, got {shown(value)}")
        total = sum(int(n) * _UNITS_S[unit] for n, unit in re.findall(r"([0-9]+)([smhd]?)", value))
        if not least <= total <= most:
            bound = f"at least {least} s" if total < least else f"at most {most} s"
            raise ValueError(f"must be {bound}, got {total} s")
        return total

    return parse


def boolean(node: Node) -> bool:
    value = word(node, "true or false").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ValueError(f"expected true or false, got {shown(value)}")


def choice(*options: str) -> Parser:
    listed = " or ".join(options)

    def parse(node: Node) -> str:
        value = word(node, listed)
        if value in options:
            return value
        near = closest(value, options)
        raise ValueError(f"expected {listed}, got {shown(value)}" + (f"; did you mean {near!r}?" if near else ""))

    return parse


def time_limit(node: Node) -> str:
    """A time limit in sbatch's words; the text is kept as it was written."""
    value = word(node, "a time limit").strip()
    if re.fullmatch(r"(?:[0-9]{1,6}[dhms])+", value.lower()):
        total = int(seconds(0, 10**9)(node))
        raise ValueError(f"{shown(value)} is not a Slurm time limit; write {_slurm_time(total)!r}")
    limit = parse_time_limit(value)
    if limit is not None and limit > 365 * 86400:
        raise ValueError(f"{shown(value)} is more than a year; write minutes, HH:MM:SS or D-HH:MM:SS")
    return value


def _slurm_time(total_s: int) -> str:
    days, rest = divmod(total_s, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def memory(node: Node) -> str:
    """A size as ``sbatch --mem`` takes it: whole numbers, K M G T (str_to_mbytes in Slurm's proc_args.c)."""
    value = word(node, "a size like 64G").strip()
    if re.fullmatch(r"[0-9]{1,12}([kmgt]b?)?", value.lower()):
        return value
    near = re.fullmatch(r"([0-9]+)\s*([kmgt])(?:i?b)?", value.lower())
    hint = f"; write {near[1]}{near[2].upper()}" if near else "; whole numbers of K, M, G or T, for example 64G"
    raise ValueError(f"{shown(value)} is no memory size that sbatch knows{hint}")


def gres(node: Node) -> str:
    """Generic resources, ``gpu:h100:4`` or several with commas."""
    value = str(slurm_word("generic resources like gpu:h100:4")(node))
    for part in value.split(","):
        if not re.fullmatch(r"(?:gres[:/])?[A-Za-z0-9_.\-/]+(?::[A-Za-z0-9_.\-]+){0,2}(?:=[0-9]+)?(?:\(.*\))?", part):
            raise ValueError(
                f"{shown(part)} does not look like a generic resource; expected NAME[:TYPE][:COUNT], like gpu:h100:4"
            )
    return value


def signal_name(node: Node) -> str:
    """A signal that a program can catch, or ``none``."""
    value = word(node, "a signal").strip()
    name = value.upper().removeprefix("SIG")
    known = f"one of {', '.join(_SIGNALS)} or none"
    if name == "NONE":
        return "none"
    if name in _SIGNALS:
        return name
    if name in {"KILL", "STOP", "9"}:
        raise ValueError(f"{shown(value)} cannot be caught, so nothing could be saved; expected {known}")
    raise ValueError(f"expected {known}, got {shown(value)}")


def arguments(expected: str) -> Parser:
    """A list of process arguments; each stays exactly as it was written (``1e-4``, ``010``, ``no``)."""

    def parse(node: Node) -> tuple[str, ...]:
        if isinstance(node, Scalar) and not node.is_null:
            return split_command(node.text)
        if not isinstance(node, Sequence):
            raise ValueError(f"expected {expected}, got {describe(node)}")
        values = []
        for index, item in enumerate(node.items):
            try:
                values.append(argument(word(item)))
            except ValueError as exc:
                raise ValueError(f"item {index + 1}: {exc}") from None
        return tuple(values)

    return parse


def split_command(line: str) -> tuple[str, ...]:
    """The words of a command line as a shell would split them, nothing expanded; raises ``ValueError``."""
    line = line.replace("\\\n", " ")
    try:
        words = shlex.split(line)
    except ValueError as exc:
        raise ValueError(f"{shown(line)}: {str(exc).lower()}") from None
    special = _SHELL_ONLY.search(_unquoted(line))
    if special:
        quoted = line.replace("'", "''")
        raise ValueError(
            f"{special.group().strip()!r} would need a shell, and the command is started without one; "
            f"write [bash, -c, '{quoted if len(quoted) <= 200 else '…'}'], or put the words in a list"
        )
    return tuple(argument(word_) for word_ in words)


def _unquoted(line: str) -> str:
    """``line`` without what stands in quotes or behind a backslash; in double quotes ``$`` and `````` still count."""

    def keep(match: re.Match[str]) -> str:
        quoted = match.group()
        return "_" + "".join(re.findall(r"(?<!\\)[$`]", quoted)) if quoted.startswith('"') else "_"

    return re.sub(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", keep, line, flags=re.DOTALL)


def setup_lines(node: Node) -> tuple[str, ...]:
    """Bash lines; a single text may hold several."""
    if isinstance(node, Scalar) and not node.is_null:
        node = Sequence((node,), node.place)
    if not isinstance(node, Sequence):
        raise ValueError(f"expected a list of bash lines, got {describe(node)}")
    return tuple(argument(word(item, "a bash line")).rstrip("\n") for item in node.items)


def long_options(command: str) -> Parser:
    """Options of one of Slurm's commands in their long form with ``=``: one item, one option."""

    def parse(node: Node) -> tuple[str, ...]:
        if isinstance(node, Scalar) and not node.is_null:
            node = Sequence((node,), node.place)
        if not isinstance(node, Sequence):
            raise ValueError(f"expected a list of {command} options, got {describe(node)}")
        return _each_option([one_line(word(item)).strip() for item in node.items], command)

    return parse


def _each_option(options: list[str], command: str) -> tuple[str, ...]:
    """All of them, or one error that names every bad one."""
    problems = []
    for option in options:
        try:
            _long_option(option, command)
        except ValueError as exc:
            problems.append(str(exc))
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(options)


def _long_option(option: str, command: str) -> str:
    if _OPTION_PARTS.fullmatch(option):
        return option
    spaced = re.fullmatch(r"(--[a-z][a-z0-9_-]*)\s+(\S.*)", option)
    if spaced:
        raise ValueError(f"{shown(option)}: write it with an equals sign: {spaced[1]}={spaced[2]}")
    raise ValueError(f"{shown(option)} is not a long option of {command}; write --name or --name=value")


def variables_key(name: str) -> None:
    """Check one environment variable's name; raises ``ValueError``."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        raise ValueError(f"{shown(name)} cannot be the name of an environment variable; use letters, digits and _")
    if name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SLURMD_")):
        raise ValueError(f"{name} belongs to Slurm, which sets it for each job; use the key under resources instead")
    if name.startswith("SLURMTRAIN_"):
        raise ValueError(f"{name} belongs to slurmtrain, which sets it for each launch")
    if name in RANK_VARIABLES:
        raise ValueError(f"{name} is set for each rank by the launcher")


RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"})


def variable_value(node: Node) -> str:
    """An environment value as it was written; an empty text is fine."""
    if not isinstance(node, Scalar):
        raise ValueError(f"expected a text, got {describe(node)}")
    if node.is_null and node.text:
        raise ValueError(f"for the word, write it in quotes: '{node.text}'")
    return argument(node.text)
