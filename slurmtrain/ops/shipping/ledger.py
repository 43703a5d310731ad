"""What this side knows of the remote copy. Losing it costs a second upload, never anything else."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.errors import StoreError
from slurmtrain.ops.shipping.items import Source
from slurmtrain.store.publish import read_json, replace, to_json

_STATE = "state.json"
_SAVE_S = 2.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One object, or a growing text in parts: ``bounds`` are then the offsets at which its full parts begin and end."""

    source: Source
    upto: int  # bytes of the source that were sent
    size: int  # of the object, or of its last part
    sha256: str = ""
    bounds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """How far the remote copy is, for who looks whether there is something to do."""

    url: str = ""
    looked_at: float = 0.0  # seconds since the epoch; what changed later is not there yet
    complete: bool = False  # the run is over, and all of it is there
    problem: str = ""  # why something is missing, one sentence
    retry_at: float | None = None  # when a look is worth it although nothing changed


class Ledger:
    """The entries by key, kept in the run directory; a store that cannot be written is forgiven."""

    def __init__(self, folder: Path, url: str) -> None:
        self._path = folder / f"ledger-{zlib.crc32(url.encode()):08x}.json"  # one for each place
        self._url = url
        self._saved_at = 0.0
        self.entries: dict[str, Entry] = {}
        self.checkpoints: dict[str, str] = {}  # name → fingerprint of those that are there as a whole
        with contextlib.suppress(StoreError):
            self._load(read_json(self._path) or {})

    def put(self, key: str, entry: Entry) -> None:
        """Remember; written down now and then."""
        self.entries[key] = entry
        if time.monotonic() - self._saved_at > _SAVE_S:
            self.save()

    def save(self) -> None:
        """Write down what is known."""
        self._saved_at = time.monotonic()
        entries = {key: _to_json(entry) for key, entry in self.entries.items()}
        with contextlib.suppress(StoreError, OSError):
            self._path.parent.mkdir(exist_ok=True)
            replace(self._path, to_json({"url": self._url, "entries": entries, "checkpoints": self.checkpoints}))

    def _load(self, record: dict[str, Any]) -> None:
        if record.get("url") != self._url:  # another place holds nothing yet
            return
        with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError):
            self.entries = {str(key): _from_json(value) for key, value in record["entries"].items()}
            self.checkpoints = {str(key): str(value) for key, value in record["checkpoints"].items()}


def read_state(folder: Path) -> State:
    """What the last pass said; the beginning where there was none. Never raises."""
    try:
        record = read_json(folder / _STATE) or {}
        retry_at = record.get("retry_at")
        return State(
            str(record.get("url", "")),
            float(record.get("looked_at", 0.0)),
            record.get("complete") is True,
            str(record.get("problem", "")),
            None if retry_at is None else float(retry_at),
        )
    except (StoreError, TypeError, ValueError):
        return State()


def write_state(folder: Path, state: State) -> None:
    """A store that cannot be written is forgiven."""
    with contextlib.suppress(StoreError, OSError):
        folder.mkdir(exist_ok=True)
        replace(folder / _STATE, to_json(dataclasses.asdict(state)))


def _to_json(entry: Entry) -> dict[str, Any]:
    source = entry.source
    return {**dataclasses.asdict(entry), "source": [source.size, source.mtime_ns, source.inode]}


def _from_json(value: dict[str, Any]) -> Entry:
    size, mtime_ns, inode = (int(number) for number in value["source"])
    bounds = tuple(int(number) for number in value["bounds"])
    return Entry(Source(size, mtime_ns, inode), int(value["upto"]), int(value["size"]), str(value["sha256"]), bounds)
