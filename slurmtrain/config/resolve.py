"""From layers of values to one spec: defaults, settings, job file, environment, options; the later one wins."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from slurmtrain.config import parsers
from slurmtrain.config.checks import check_spec
from slurmtrain.config.environment import environment_layer, unused_variables
from slurmtrain.config.nodes import Mapping, Node, Place, Scalar, put, shown
from slurmtrain.config.nodes import Sequence as ListNode
from slurmtrain.config.problems import Problems
from slurmtrain.config.schema import CAUSES, VARIABLES, Layer, Value, all_keys, read_layer
from slurmtrain.config.settings import Settings
from slurmtrain.config.specfile import dump_spec
from slurmtrain.config.yamlfile import load_yaml, parse_yaml
from slurmtrain.core.spec import Spec
from slurmtrain.errors import SpecError, UsageError


@dataclass(frozen=True, slots=True)
class Resolved:
    """A spec, where each of its values came from (key path → words), and notes for the person who submits."""

    spec: Spec
    sources: MappingType[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for, not yet read."""

    job_file: Path | None = None
    sets: Sequence[str] = ()  # KEY=VALUE
    options: MappingType[str, Node] = field(default_factory=dict)  # key path → value of an option
    command: Sequence[str] = ()
    ntasks: str | None = None  # of option --ntasks: nodes times ranks on each


def resolve(request: Request, settings: Settings, environ: MappingType[str, str], cwd: Path) -> Resolved:
    """The spec to submit. Raises ``SpecError`` with every mistake in it, ``NotFoundError``, ``UsageError``."""
    problems = Problems()
    file_layer = read_layer(load_yaml(request.job_file), problems) if request.job_file else {}
    env_layer = read_layer(environment_layer(environ), problems)
    option_layer = read_layer(_option_tree(request), problems)
    above = [file_layer, env_layer, option_layer]
    below = _settings_layers(settings, above)
    merged = merge([*below, *above])
    _check_locks(settings, above, merged, problems)
    _spread_tasks(request.ntasks, merged, problems)
    base = request.job_file.absolute().parent if request.job_file else cwd
    spec = _build(merged, base, cwd, problems)
    notes = [*unused_variables(environ), *_env_over_file(file_layer, env_layer, option_layer)]
    notes += check_spec(spec, {path: value.place for path, value in merged.items()}, problems, environ)
    problems.raise_if_any(str(request.job_file) if request.job_file else "this job")
    return Resolved(spec, _sources(merged), tuple(notes))


def change(
    spec: Spec, name: str, sets: Sequence[str], settings: Settings, environ: MappingType[str, str], cwd: Path
) -> Resolved:
    """A spec of an earlier run (``name``) with other values for some keys; checked as a new one.

    Raises ``SpecError`` with every mistake, ``UsageError`` for what is no KEY=VALUE.
    """
    problems = Problems()
    before = read_layer(parse_yaml(dump_spec(spec, {}, name), name, fixed_place=Place(name)), problems)
    asked = read_layer(_option_tree(Request(sets=sets)), problems)
    merged = merge([before, asked])
    _check_locks(settings, [asked], {path: merged[path] for path in asked if path in merged}, problems)
    changed = _build(merged, cwd, cwd, problems)
    notes = check_spec(changed, {path: value.place for path, value in merged.items()}, problems, environ)
    problems.raise_if_any(name)
    return Resolved(changed, _sources(merged), tuple(notes))


def merge(layers: Sequence[Layer]) -> dict[str, Value]:
    """The winning value of each key path; a null takes lower ones away."""
    merged: dict[str, Value] = {}
    for layer in layers:
        for path, value in layer.items():
            if value is None:
                merged.pop(path, None)
            else:
                merged[path] = value
    return merged


def _settings_layers(settings: Settings, above: list[Layer], *, of_the_site: bool = False) -> list[Layer]:
    """Defaults for all jobs, then those for the partition that was chosen."""
    files = [file for file in settings.files if file.may_lock or not of_the_site]
    chosen = merge([*(file.defaults for file in settings.files), *above]).get("resources.partition")
    special = [file.partitions[chosen.value] for file in files if chosen and chosen.value in file.partitions]
    return [*(file.defaults for file in files), *special]


def _option_tree(request: Request) -> Mapping:
    tree = Mapping({}, Place("options"))
    for text in request.sets:
        path, node = _parse_set(text)
        put(tree, path, node)
    for path, node in request.options.items():
        put(tree, path, node)
    if request.command:
        place = Place("command line")
        put(tree, "command", ListNode(tuple(Scalar(word, place) for word in request.command), place))
    return tree


def _parse_set(text: str) -> tuple[str, Node]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UsageError(f"--set needs KEY=VALUE, like --set resources.nodes=4, got {shown(text)}")
    place = Place(f"--set {key}")
    if key.startswith(f"{VARIABLES}."):  # any text at all, as a shell's export would take it
        return key, Scalar(value, place)
    try:
        node = parse_yaml(value, str(place), fixed_place=place) if value.strip() else Scalar("", place)
    except SpecError:
        return key, Scalar(value, place)
    is_text = isinstance(node, Mapping) and key in all_keys() and key not in (CAUSES, VARIABLES)  # name=a: b
    return key, Scalar(value, place) if is_text else node


def _spread_tasks(ntasks: str | None, merged: dict[str, Value], problems: Problems) -> None:
    """``-n`` says how many ranks there are in all; a run has the same number on each node."""
    if ntasks is None:
        return
    place = Place("option --ntasks")
    try:
        total = int(parsers.integer(1)(Scalar(ntasks, place)))
    except ValueError as exc:
        problems.add(place, "resources.tasks_per_node", str(exc))
        return
    nodes = merged["resources.nodes"].value if "resources.nodes" in merged else 1
    if total % nodes:
        problems.add(place, "resources.tasks_per_node", f"{total} ranks do not spread evenly over {nodes} nodes")
        return
    merged["resources.tasks_per_node"] = Value(total // nodes, place)


def _check_locks(settings: Settings, above: list[Layer], merged: dict[str, Value], problems: Problems) -> None:
    """A locked key has the site's value, or its default where the site gives none."""
    site = merge(_settings_layers(settings, above, of_the_site=True))
    for key, file in settings.locks().items():
        wanted = site[key].value if key in site else _default(key)
        asked = merged.get(key)
        if asked is None and key in site:
            asked = Value(None, site[key].place)  # a null took the site's value away
        if asked is not None and asked.value != wanted:
            problems.add(asked.place, key, f"locked by the site to {wanted!r} (in {file.path}); remove it")


def _default(key: str) -> Any:
    value: Any = Spec(command=())
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _build(merged: dict[str, Value], base: Path, cwd: Path, problems: Problems) -> Spec:
    tree: dict[str, Any] = {"command": ()}
    variables: dict[str, str] = {}
    for path, value in merged.items():
        if path.startswith(f"{VARIABLES}."):
            variables[path.removeprefix(f"{VARIABLES}.")] = value.value
            continue
        group, _, key = path.rpartition(".")
        (tree.setdefault(group, {}) if group else tree)[key] = value.value
    if variables:
        tree.setdefault("environment", {})["variables"] = variables
    hints = get_type_hints(Spec)
    groups = {f.name: hints[f.name] for f in dataclasses.fields(Spec) if dataclasses.is_dataclass(hints[f.name])}
    spec = Spec(**{key: groups[key](**value) if key in groups else value for key, value in tree.items()})
    return dataclasses.replace(spec, workdir=_workdir(spec, merged.get("workdir"), base, cwd, problems))


def _workdir(spec: Spec, value: Value | None, base: Path, cwd: Path, problems: Problems) -> str:
    if spec.workdir is None or value is None:
        return str(cwd)
    folder = base if value.place.line is not None else cwd  # in a job file: relative to that file
    path = folder / Path(spec.workdir).expanduser()
    if not path.is_dir():
        problems.add(value.place, "workdir", f"{shown(str(path), 200)} is not a directory here")
    return str(Path(path).absolute())


def _env_over_file(file_layer: Layer, env_layer: Layer, option_layer: Layer) -> list[str]:
    notes = []
    for path, value in env_layer.items():
        asked = file_layer.get(path)
        if value and asked and asked.value != value.value and path not in option_layer:
            notes.append(
                f"{path} is {value.value!r} ({value.place}), not {asked.value!r} ({asked.place}): as with sbatch"
            )
    return notes


def _sources(merged: dict[str, Value]) -> dict[str, str]:
    sources = {path: "default" for path in all_keys() if path != VARIABLES}
    sources["workdir"] = "where submit was called"
    sources.update({path: str(value.place) for path, value in merged.items()})
    return sources
