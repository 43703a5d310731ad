"""What kind of value each key of a rule takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slurmtrain.errors import SpecError


def is_whole(value: Any) -> bool:
    """A whole number; TOML's true is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """A number of any kind."""
    return is_whole(value) or isinstance(value, float)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 < value < 1


def _is_count(value: Any) -> bool:
    return is_whole(value) and value >= 1


def _one_or_more(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: all(map(check, value)) if isinstance(value, list) else check(value)


_TYPES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "ignore_case": (_is_switch, "true or false"),
    "fallback": (_is_switch, "true or false"),
    "retryable": (_is_switch, "true or false"),
    "weight": (is_whole, "a number from 0 to 100"),
    "min_count": (_is_count, "a whole number from 1 on"),
    "confidence": (_is_share, "a number between 0 and 1"),
    "advice": (_is_text, "a text"),
    "note": (_is_text, "a text"),
    "exit_code": (_one_or_more(is_whole), "a whole number or a list of them"),
    "signal": (_one_or_more(is_whole), "a whole number or a list of them"),
    "state": (_one_or_more(_is_text), "one of Slurm's states or a list of them"),
    "victim_of": (_one_or_more(_is_text), "a cause or family, or a list of them"),
    "hit": (_one_or_more(_is_text), "a text or a list of texts"),
    "miss": (_one_or_more(_is_text), "a text or a list of texts"),
}


def check_types(where: str, values: Mapping[str, Any]) -> None:
    """Raises ``SpecError`` for the first value of a wrong kind. Patterns and words of tables are checked elsewhere."""
    for key, value in values.items():
        known = _TYPES.get(key)
        if known is not None and not known[0](value):
            raise SpecError(f"{where}: {key} is {str(value)[:60]!r}; it must be {known[1]}")
