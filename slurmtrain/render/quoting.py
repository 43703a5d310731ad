"""Quoting for the two languages of a batch script: bash, and sbatch's own reading of ``#SBATCH`` lines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def quote_sh(value: object) -> str:
    """One word of bash, whatever is in it."""
    return shlex.quote(str(value))


def quote_argv(values: Sequence[object]) -> str:
    """Several words of bash."""
    return " ".join(quote_sh(value) for value in values)


def quote_directive(value: str) -> str:
    """A value for ``#SBATCH --option=…``.

    sbatch knows both quotes, a backslash escapes in and outside of them, and an unquoted ``#`` begins a comment
    (get_argument in src/sbatch/opt.c, 20.11 to 26.05). A line break would end the directive: never let one come here.
    """
    if "\n" in value or "\r" in value or "\0" in value:
        raise ValueError("a directive is one line")
    if value and all((char.isalnum() and char.isascii()) or char in "_-.,:/=@+%[]&|*()~" for char in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def escape_file_pattern(path: str) -> str:
    """A path for ``--output``, where ``%`` begins a pattern (src/slurmd/common/fname.c).

    A backslash would switch all patterns off, so a path with one has no form: who makes paths refuses it.
    """
    if "\\" in path:
        raise ValueError("Slurm cannot write a log to a path with a backslash")
    return path.replace("%", "%%")
