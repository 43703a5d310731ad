"""Single values as Slurm prints them. Nothing here raises: a value that cannot be read is None."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

_UNSET = frozenset({"", "N/A", "NONE", "NOT_SET", "UNKNOWN", "(NULL)", "NONE ASSIGNED", "NULL"})
_DURATION = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,9})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?", re.ASCII)
_YEAR_9999_S = 253_402_300_799


def parse_text(text: str) -> str:
    """The value, ``""`` for each of Slurm's ways to say that there is none."""
    stripped = text.strip()
    return "" if stripped.upper() in _UNSET else stripped


def parse_int(text: str) -> int | None:
    stripped = text.strip()
    return int(stripped) if stripped.isascii() and stripped.isdigit() and len(stripped) < 20 else None


def parse_time(text: str) -> datetime | None:
    """Seconds since 1970, or ISO 8601 in UTC where a command ignores ``SLURM_TIME_FORMAT``; 0 is unset."""
    value = parse_text(text)
    seconds = parse_int(value)
    if seconds is not None:
        return datetime.fromtimestamp(seconds, timezone.utc) if 0 < seconds <= _YEAR_9999_S else None
    try:
        return datetime.fromisoformat(value).replace(tzinfo=timezone.utc) if value else None
    except ValueError:
        return None


def parse_duration(text: str) -> timedelta | None:
    """``days-hours:minutes:seconds``, ``hours:minutes:seconds`` or ``minutes:seconds``; UNLIMITED is None."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, first, second, third = (int(part) if part else None for part in match.groups())
    if days is not None or third is not None:
        return timedelta(days=days or 0, hours=first or 0, minutes=second or 0, seconds=third or 0)
    return timedelta(minutes=first or 0, seconds=second or 0)


def parse_minutes(text: str) -> timedelta | None:
    """sacct's TimelimitRaw; UNLIMITED and Partition_Limit are None."""
    minutes = parse_int(text)
    return None if minutes is None else timedelta(minutes=minutes)


def parse_seconds(text: str) -> timedelta | None:
    """``20 sec`` of ``scontrol show config``."""
    words = text.split()
    seconds = parse_int(words[0]) if words else None
    return None if seconds is None else timedelta(seconds=seconds)


def parse_exit_code(text: str) -> tuple[int | None, int | None]:
    """``code:signal`` (no signal is None), or the wait status as one number, which squeue printed up to 22.05."""
    code, colon, number = text.strip().partition(":")
    if colon:
        signal = parse_int(number)
        return parse_int(code), signal or None
    status = parse_int(code)
    if status is None:
        return None, None
    return (status >> 8) & 0xFF, (status & 0x7F) or None


def parse_options(text: str) -> dict[str, str]:
    """``a,b=1,c=2`` of AuthInfo or SchedulerParameters; names in small letters."""
    pairs = (item.partition("=") for item in text.split(","))
    return {name.strip().lower(): value.strip() for name, _, value in pairs if name.strip()}
