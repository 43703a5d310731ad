"""Extensions in Python: found, loaded one by one, never allowed to break the command that loads them.

A plugin is a module (an entry point of the group ``slurmtrain``, or a file ``plugins/*.py`` in a place of the search
order) with functions marked ``@hookimpl`` and named as in ``Hooks``. Code beside a project's files is run only when the
user trusts the project: a cloned repository must not run code at ``slurmtrain submit``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from slurmtrain.errors import RefusedError
from slurmtrain.plugins.search import Place
from slurmtrain.resources import require_trusted

GROUP = "slurmtrain"
hookimpl = pluggy.HookimplMarker(GROUP)
_hookspec = pluggy.HookspecMarker(GROUP)


class Hooks:
    """What a plugin may add. Each function is called without arguments and returns plain values."""

    @_hookspec
    def slurmtrain_template_folders(self) -> Sequence[Path]:
        """Folders of templates; they come before the bundled ones and after the site's."""
        return ()

    @_hookspec
    def slurmtrain_rule_folders(self) -> Sequence[Path]:
        """Folders of rule packs; likewise."""
        return ()

    @_hookspec
    def slurmtrain_commands(self) -> Mapping[str, Any]:
        """Further commands: name → click command. A name that exists already is passed over."""
        return {}


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins that could be loaded, and notes on those that could not."""

    manager: pluggy.PluginManager
    notes: list[str] = field(default_factory=list)

    def folders(self, kind: str) -> list[Path]:
        """Folders of a kind (``template``, ``rule``) that plugins add, the first plugin first."""
        found: list[Path] = []
        for name, answer in self._ask(f"slurmtrain_{kind}_folders"):
            try:
                found += [path for path in map(Path, answer) if path.is_dir()]
            except TypeError:
                self.notes.append(f"the plugin {name} returned no list of folders and is left out")
        return found

    def commands(self) -> dict[str, Any]:
        """Commands that plugins add; the first of a name wins."""
        found: dict[str, Any] = {}
        for name, answer in self._ask("slurmtrain_commands"):
            if isinstance(answer, Mapping):
                found = {**answer, **found}
            else:
                self.notes.append(f"the plugin {name} returned no commands and is left out")
        return found

    def _ask(self, hook: str) -> Iterator[tuple[str, Any]]:
        """Each plugin's answer by itself, so that one that fails spoils nothing but its own."""
        for implementation in reversed(getattr(self.manager.hook, hook).get_hookimpls()):
            try:
                yield implementation.plugin_name, implementation.function()
            except Exception as exc:  # noqa: BLE001 - somebody else's code
                self.notes.append(f"the plugin {implementation.plugin_name} failed ({type(exc).__name__}: {exc})")


def load_plugins(places: Iterable[Place], trusted: Sequence[Path] = ()) -> Plugins:
    """Load every plugin of the search order. Raises ``RefusedError`` for one that others may change."""
    plugins = Plugins(pluggy.PluginManager(GROUP))
    plugins.manager.add_hookspecs(Hooks)
    loaders: list[tuple[str, Any]] = [(str(path), path) for path in _find_files(places, trusted, plugins.notes)]
    loaders += [(entry.value, entry) for entry in entry_points(group=GROUP)]
    for name, source in reversed(loaders):  # pluggy asks the one that came last first
        try:
            module = _load_file(source) if isinstance(source, Path) else source.load()
            plugins.manager.register(module, name)
        except Exception as exc:  # noqa: BLE001 - somebody else's code
            plugins.notes.append(f"the plugin {name} cannot be loaded ({type(exc).__name__}: {exc})")
    return plugins


def _find_files(places: Iterable[Place], trusted: Sequence[Path], notes: list[str]) -> Iterator[Path]:
    for place in places:
        folder = place.folder / "plugins"
        files = sorted(folder.glob("*.py"))
        if files and place.origin == "project" and not _is_trusted(folder, trusted):
            notes.append(f'{folder} holds code that is not run; to allow it, add its project to trust = ["…"]')
            continue
        for path in files:
            require_trusted(path, f"the {place.origin}'s plugin", trusted)
            yield path


def _is_trusted(folder: Path, trusted: Sequence[Path]) -> bool:
    return any(folder.resolve().is_relative_to(path.resolve()) for path in trusted)


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"slurmtrain_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RefusedError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
