"""Settings: where runs are kept, defaults for jobs, and what a site has locked.

Files, later ones win: ``<sys.prefix>/etc/slurmtrain/config.toml``, ``/etc/slurmtrain/config.toml`` (these two may lock
settings), ``~/.config/slurmtrain/config.toml``, the nearest ``slurmtrain.toml`` above the working directory. Above all
of them: ``--store`` and ``$SLURMTRAIN_STORE``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmtrain.config.limits import read_limits
from slurmtrain.config.nodes import Mapping, Place, Scalar, from_plain, put, shown
from slurmtrain.config.problems import Problems, closest
from slurmtrain.config.schema import VARIABLES, Layer, all_keys, read_layer
from slurmtrain.config.textfile import read_text
from slurmtrain.errors import UsageError
from slurmtrain.resources import require_trusted

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT_FILE = "slurmtrain.toml"
_KEYS = ("store", "agent_python", "trust", "lock", "defaults", "partitions", "prune")


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """One settings file, read and checked."""

    path: Path
    may_lock: bool
    defaults: Layer
    partitions: MappingType[str, Layer]
    locked: tuple[str, ...] = ()
    store: str | None = None
    agent_python: str | None = None
    trust: tuple[Path, ...] = ()
    prune: MappingType[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the settings files say, lowest priority first."""

    files: tuple[SettingsFile, ...] = ()
    store: Path = field(default_factory=lambda: Path.home() / "slurmtrain")
    store_source: str = "default"
    agent_python: str | None = None
    prune: MappingType[str, int] = field(default_factory=dict)  # limits of `slurmtrain prune`: see config.limits

    def trusted(self) -> list[Path]:
        """Folders whose files may belong to colleagues."""
        return [folder for file in self.files if file.path.name != PROJECT_FILE for folder in file.trust]

    def locks(self) -> dict[str, SettingsFile]:
        """Key paths that a site file locks, and that file."""
        return {key: file for file in self.files for key in file.locked}


def find_settings_files(environ: MappingType[str, str], cwd: Path) -> list[tuple[Path, bool]]:
    """Existing settings files, lowest priority first, and whether each may lock."""
    site = [Path(sys.prefix) / "etc" / "slurmtrain" / "config.toml", Path("/etc/slurmtrain/config.toml")]
    candidates = [(path, True) for path in site] + [(user_config_dir(environ) / "config.toml", False)]
    project = find_project(cwd)
    if project is not None:
        candidates.append((project / PROJECT_FILE, False))
    return [(path, may_lock) for path, may_lock in candidates if path.is_file()]


def user_config_dir(environ: MappingType[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME") or ""
    return (Path(base) if base.startswith("/") else _home(environ) / ".config") / "slurmtrain"


def find_project(cwd: Path) -> Path | None:
    """The nearest folder, from here upwards, that holds a ``slurmtrain.toml``."""
    return next((folder for folder in (cwd, *cwd.parents) if (folder / PROJECT_FILE).is_file()), None)


def load_settings(environ: MappingType[str, str], cwd: Path, *, store: str | None = None) -> Settings:
    """All settings. ``store`` is what the command line says. Raises ``SpecError``, ``RefusedError``, ``UsageError``."""
    problems = Problems()
    files: list[SettingsFile] = []
    trust: list[Path] = []
    for path, may_lock in find_settings_files(environ, cwd):
        require_trusted(path, "the settings file", trust)
        read = read_settings_file(path, problems, may_lock=may_lock)
        trust += read.trust if path.name != PROJECT_FILE else ()
        files.append(read)
    problems.raise_if_any("slurmtrain's settings")
    where, source = _store(environ, files, store)
    agent = next((file.agent_python for file in reversed(files) if file.agent_python), None)
    limits = {key: value for file in files for key, value in file.prune.items()}
    return Settings(tuple(files), _absolute(where, cwd, environ), source, agent, limits)


def _store(environ: MappingType[str, str], files: list[SettingsFile], option: str | None) -> tuple[str, str]:
    if option is not None:
        if not option:
            raise UsageError("--store needs a directory, got an empty text")
        return option, "option --store"
    if environ.get("SLURMTRAIN_STORE"):
        return environ["SLURMTRAIN_STORE"], "environment SLURMTRAIN_STORE"
    for file in reversed(files):
        if file.store:
            return str(_relative_to(file.path.parent, file.store)), str(file.path)
    return "~/slurmtrain", "default"


def _relative_to(folder: Path, text: str) -> str:
    return text if text.startswith(("~", "/")) else str(folder / text)


def _home(environ: MappingType[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _absolute(text: str, cwd: Path, environ: MappingType[str, str]) -> Path:
    """A path of the user's without ``~`` and ``..``; links stay, since they may name a mount that moves."""
    if text == "~" or text.startswith("~/"):
        text = str(_home(environ)) + text[1:]
    return Path(*_without_dots((cwd / text).parts))


def _without_dots(parts: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    for part in parts:
        if part == ".." and len(kept) > 1:
            kept.pop()
        elif part != "..":
            kept.append(part)
    return kept


def read_settings_file(path: Path, problems: Problems, *, may_lock: bool) -> SettingsFile:
    """One file; what is wrong in it is added to ``problems``."""
    place = Place(str(path))
    try:
        data: dict[str, Any] = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as exc:
        problems.add(place, "", f"not valid TOML: {exc}")
        data = {}
    for key in data:
        if key not in _KEYS:
            near = closest(key, _KEYS)
            hint = f"; did you mean {near!r}?" if near else f"; expected one of {', '.join(_KEYS)}"
            if key in {name.split(".")[0] for name in all_keys()}:
                hint = f"; values for jobs go under [defaults], like defaults.{key}"
            problems.add(place, shown(key) if not key.isidentifier() else key, f"unknown key{hint}")
    partitions = data.get("partitions", {})
    if not isinstance(partitions, dict):
        problems.add(place, "partitions", "expected a table for each partition, like [partitions.gpu]")
        partitions = {}
    return SettingsFile(
        path=path,
        may_lock=may_lock,
        defaults=_job_values(data.get("defaults", {}), place, "defaults", problems),
        partitions={n: _job_values(t, place, f"partitions.{n}", problems) for n, t in partitions.items()},
        locked=_locked(data.get("lock", []), place, problems, may_lock=may_lock),
        store=_text(data, "store", place, problems),
        agent_python=_text(data, "agent_python", place, problems),
        prune=read_limits(data.get("prune", {}), place, problems),
        trust=tuple(Path(t).expanduser() for t in _texts(data.get("trust", []), "trust", place, problems)),
    )


def _job_values(table: Any, place: Place, name: str, problems: Problems) -> Layer:
    """Values for jobs; keys may be nested tables or dotted words (``"resources.nodes" = 2``)."""
    if not isinstance(table, dict):
        problems.add(place, name, "expected a table of job keys")
        return {}
    tree = Mapping({}, place)
    for key, value in table.items():
        try:
            put(tree, key, from_plain(value, place))
        except TypeError as exc:
            problems.add(place, f"{name}.{key}", str(exc))
    inner = Problems()
    layer = read_layer(tree, inner)
    for problem in inner.found:
        problems.add(problem.place, f"{name}.{problem.path}", problem.message)
    return layer


def _locked(value: Any, place: Place, problems: Problems, *, may_lock: bool) -> tuple[str, ...]:
    keys = _texts(value, "lock", place, problems)
    if keys and not may_lock:
        problems.add(place, "lock", "only the site's settings in /etc/slurmtrain/config.toml may lock keys")
        return ()
    for key in keys:
        if key not in all_keys() or key == VARIABLES:
            near = closest(key, all_keys())
            problems.add(place, "lock", f"{shown(key)} is no job key" + (f"; did you mean {near!r}?" if near else ""))
    return keys


def _text(data: dict[str, Any], key: str, place: Place, problems: Problems) -> str | None:
    value = data.get(key)
    if value is None or (isinstance(value, str) and value and value.isprintable()):
        return value
    problems.add(place, key, f"expected a path in quotes, got {shown(str(value))}")
    return None


def _texts(value: Any, key: str, place: Place, problems: Problems) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
        return tuple(value)
    problems.add(place, key, 'expected a list of texts, like ["…"]')
    return ()


def option_node(value: str, option: str) -> Scalar:
    """A value of the command line as a leaf of a tree."""
    return Scalar(value, Place(f"option {option}"))
