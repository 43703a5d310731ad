"""Pickles read without running anything that they name.

Checkpoints are pickles, and a pickle may call any function. Here every name stands for an inert object that remembers
what it was given: the shape of the data can be looked at, and nothing of it is executed.
"""

from __future__ import annotations

import gc
import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from slurmtrain.checkpoints.metered import MEMORY_BYTES, SMALL_BYTES, Enough, Metered, allowed_memory
from slurmtrain.checkpoints.model import Corrupt

_MAX_NAMES = 10_000
_ITEM_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "ComplexDouble": 16, "ComplexFloat": 8, "Untyped": 1,
}  # fmt: skip


class Inert:
    """Stands for an object of any class: arguments and state are kept, nothing is done."""

    __slots__ = ("args", "state")  # a million of them may be in one pickle
    qualified = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any, **_kwargs: Any) -> Inert:
        made = super().__new__(cls)
        made.args = args
        made.state = None
        return made

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None: ...

    def extend(self, values: Any) -> None: ...

    def field(self, name: str) -> Any:
        """An attribute of the object that was pickled; None where it had none of that name."""
        state = self.state[0] if isinstance(self.state, tuple) and self.state else self.state
        return state.get(name) if isinstance(state, dict) else None


class Unread:
    """Stands for objects of which there are millions and that nobody here looks into: one for all of them."""

    __slots__ = ()
    one: Unread

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Unread:
        return cls.one

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        if type(state) is dict:
            state.clear()  # the unpickler keeps it to its end


Unread.one = object.__new__(Unread)


class InertDict(dict[Any, Any]):
    """Stands for a subclass of dict."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None: ...


_DICTS = frozenset({("collections", "OrderedDict"), ("collections", "defaultdict"), ("collections", "Counter")})

_DCP = "torch.distributed.checkpoint.metadata"
_UNREAD = frozenset({("torch", "Size"), (_DCP, "MetadataIndex"), (_DCP, "ChunkStorageMetadata")})


class Unpickled(NamedTuple):
    """What a pickle holds: the object (None unless ``whole``), and torch's storages that it refers to.

    Not ``whole``: there was not enough time or memory to read it to its end.
    """

    value: Any
    storages: list[tuple[Any, ...]]
    whole: bool


class _Reader(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO | Metered, take: Callable[[dict[Any, Any]], bool] | None = None) -> None:
        super().__init__(stream, encoding="latin-1", errors="replace")
        self.storages: list[tuple[Any, ...]] = []
        self._classes: dict[tuple[str, str], type] = {}
        self._base = _taking(take) if take is not None else Inert

    def find_class(self, module: str, name: str) -> Any:
        key = (module, name)
        if key in _DICTS:
            return InertDict
        if key in _UNREAD:
            return Unread
        if key not in self._classes:
            if len(self._classes) >= _MAX_NAMES:
                raise Corrupt("a pickle in it names more classes than any program has")
            self._classes[key] = type("Inert", (self._base,), {"__slots__": (), "qualified": f"{module}.{name}"})
        return self._classes[key]

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple):
            self.storages.append(pid)
        return pid


def _taking(take: Callable[[dict[Any, Any]], bool]) -> type[Inert]:
    class Taking(Inert):
        __slots__ = ()

        def __setstate__(self, state: Any) -> None:
            if type(state) is not dict or not take(state):
                self.state = state

    return Taking


def read_pickle(data: bytes, what: str) -> Any:
    """The object. Raises ``Corrupt`` for what is no pickle, and ``MemoryError``."""
    return _load(_Reader(io.BytesIO(data)), what)


def unpickle(stream: Metered, what: str, take: Callable[[dict[Any, Any]], bool] | None = None) -> Unpickled:
    """Read one pickle; the stream then stands behind it. Raises ``Corrupt`` and ``OSError``.

    ``take`` is shown the attributes of each object; what it returns True for is not kept.
    """
    reader = _Reader(stream, take)
    try:
        return Unpickled(_load(reader, what), reader.storages, True)
    except Enough:
        return Unpickled(None, reader.storages, False)
    except MemoryError:
        if stream.size <= SMALL_BYTES and allowed_memory() >= MEMORY_BYTES:
            raise Corrupt(f"{what} asks for more memory than any checkpoint needs to be checked") from None
        return Unpickled(None, reader.storages, False)


def _load(reader: _Reader, what: str) -> Any:
    collecting = gc.isenabled()
    gc.disable()  # it would look through millions of objects again and again
    try:
        return reader.load()
    except (Corrupt, Enough, MemoryError, OSError):
        raise
    except Exception as exc:
        raise Corrupt(f"{what} is damaged: {type(exc).__name__}") from exc
    finally:
        if collecting:
            gc.enable()


def sizes_of(storages: Iterable[tuple[Any, ...]]) -> dict[str, int]:
    """Key → bytes of torch's storages, from the persistent ids ``("storage", type, key, location, items)``.

    0 bytes for a type whose items are of a size that is not known here.
    """
    sizes: dict[str, int] = {}
    for pid in storages:
        if len(pid) >= 5 and pid[0] == "storage" and isinstance(pid[4], int):
            kind = str(getattr(pid[1], "qualified", "")).rpartition(".")[2].removesuffix("Storage")
            sizes[str(pid[2])] = pid[4] * _ITEM_BYTES.get(kind, 0)
    return sizes


def find_step(data: Any) -> int | None:
    """The step that the top level of a checkpoint tells, under one of the usual names."""
    if not isinstance(data, dict):
        return None
    for name in ("global_step", "global_steps", "step", "iteration", "iter", "num_updates", "completed_steps"):
        value = data.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
