"""What a person reads on the terminal: sentences on stderr, results on stdout, JSON where a program asks."""

from __future__ import annotations

import sys
from typing import Any

import click

_MAX = 8000


def clean(text: str) -> str:
    """Text that may hold anything, made harmless for a terminal; line breaks stay."""
    safe = "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
    return safe if len(safe) <= _MAX else safe[:_MAX] + "…"


def say_error(text: str) -> None:
    """One sentence (or a list of problems) on stderr."""
    click.echo(f"slurmtrain: {clean(text)}", err=True)


def say_note(text: str) -> None:
    """Something worth a word that stops nothing."""
    click.echo(f"slurmtrain: note: {clean(text)}", err=True)


def print_text(text: str) -> None:
    """A result, as it is."""
    click.echo(text, nl=not text.endswith("\n"))


def print_json(value: Any) -> None:
    """A result for a program: one JSON document."""
    import json

    click.echo(json.dumps(value, ensure_ascii=not _is_utf8(), indent=None))


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
