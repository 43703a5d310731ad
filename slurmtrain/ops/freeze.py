"""The program and the rules that a run keeps, whatever is installed later: made once, then taken from the cache.

What they are made from is read and hashed at every submission (10 ms), not judged by times or version numbers: a
checkout that is being edited, or files put back with an old date, never lead to what was made from something else.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import slurmtrain
from slurmtrain.core.rules import RuleSet
from slurmtrain.plugins.rulepacks import MAX_PACK, find_packs, load_rules
from slurmtrain.render.agent_zip import build_agent_zip
from slurmtrain.resources import bundled
from slurmtrain.store.cache import remember, user_cache_dir

SETTLED_S = 60.0


def freeze(rules: Sequence[Path], sources: Sequence[str]) -> tuple[bytes, bytes]:
    """The agent's zipapp, and all rules as JSON; they are checked when anything in them has changed.

    ``rules`` and errors as for ``load_rules``, ``sources`` and errors as for ``build_agent_zip``.
    """
    program = _hash_program()
    agent = _remember(
        "agent",
        program,
        lambda: _hash(source.encode() for source in sources),
        lambda: build_agent_zip(sources=sources),
    )
    return agent, _rules(rules, program)


def read_rules(search_path: Sequence[Path]) -> RuleSet:
    """What ``load_rules`` reads; it raises the same."""
    return RuleSet.from_json(_rules(search_path, _hash_program()).decode())


def _rules(search_path: Sequence[Path], program: bytes) -> bytes:
    return _remember(
        "rules",
        program,
        lambda: _hash_packs(search_path),
        lambda: load_rules(search_path).to_json().encode(),
    )


def _remember(kind: str, program: bytes, inputs: Callable[[], bytes], make: Callable[[], bytes]) -> bytes:
    try:
        key = _hash([kind.encode(), program, inputs()])
    except OSError:  # `make` says it better
        return make()

    def make_and_look() -> tuple[bytes, bool]:
        """What was edited or upgraded meanwhile may be in it by half, or made by code from before: it is not kept."""
        data = make()
        return data, _is_settled() and _hash([kind.encode(), _hash_program(), inputs()]) == key

    return remember(user_cache_dir(os.environ), kind, key, make_and_look)


def _hash(parts: Iterable[bytes]) -> bytes:
    """Of the parts and of where each ends."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.digest()


def _hash_program() -> bytes:
    """Of every Python file of ours, and of the Python whose byte code the agent carries."""
    python = f"{sys.implementation.cache_tag} {sys.version} -O{sys.flags.optimize}"
    return _hash([python.encode(), *_files(_sources())])


def _sources() -> list[Path]:
    return sorted(path for path in Path(slurmtrain.__file__).resolve().parent.rglob("*.py") if path.is_file())


def _is_settled() -> bool:
    """Whether the program lay there before this process began to import it."""
    newest = max(path.stat().st_ctime for path in _sources())
    return abs(time.time() - newest) > SETTLED_S


def _hash_packs(search_path: Sequence[Path]) -> bytes:
    return _hash(_files([*find_packs(search_path), *find_packs([bundled("plugins") / "rules"])]))


def _files(paths: Iterable[Path]) -> Iterable[bytes]:
    """Path and content of each."""
    for path in paths:
        yield os.fsencode(path)
        with path.open("rb", buffering=0) as stream:
            yield stream.read(MAX_PACK + 1)
