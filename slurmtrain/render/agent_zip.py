"""The frozen agent: one zipapp of the modules that ``slurmtrain.agent`` reaches, found by following imports.

It is immune to an upgrade in mid-run, the same on every node, and starts with ``python -I`` from any directory. The
same sources and the same Python make the same bytes. Beside each source lies its bytecode, which saves most of the
agent's start-up; another Python version passes it over.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import marshal
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurmtrain.errors import SlurmtrainError

ENTRY = "slurmtrain.agent.main"
_PACKAGE = "slurmtrain"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip file can hold
_MAIN = f"""\
import sys

if sys.version_info < (3, 10):
    sys.exit("slurmtrain: the agent needs Python 3.10 or newer, this is " + sys.version.split()[0])

from {ENTRY} import main

sys.exit(main())
"""


def build_agent_zip(entry: str = ENTRY, sources: Sequence[str] = ()) -> bytes:
    """The zipapp. Raises ``SlurmtrainError`` where the agent reaches for anything but the standard library.

    ``sources`` are other Python files that it runs: what they import of ours is in it, too.
    """
    modules = find_agent_modules(entry, sources)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        for path, source in sorted(modules.items()):
            _add(archive, path, source)
            _add(archive, f"{path}c", _bytecode(path, source))
    return stream.getvalue()


def _bytecode(path: str, source: bytes) -> bytes:
    """A hash-based .pyc that is never checked against its source (PEP 552): zip archives carry no useful times."""
    code = compile(source, path, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + b"\x01\0\0\0" + importlib.util.source_hash(source) + marshal.dumps(code)


def find_agent_modules(entry: str = ENTRY, sources: Sequence[str] = ()) -> dict[str, bytes]:
    """Path in the archive → source of every module of ours that ``entry`` or ``sources`` import, directly or not."""
    root = Path(__file__).resolve().parent.parent.parent
    found: dict[str, bytes] = {}
    used = (name for source in sources for name in _imports(source.encode(), "", is_package=False))
    waiting = [entry, *(name for name in used if name.partition(".")[0] == _PACKAGE)]
    while waiting:
        name = waiting.pop()
        path = _find_source(root, name)
        if path is None:
            continue
        key = path.relative_to(root).as_posix()
        if key in found:
            continue
        found[key] = path.read_bytes()
        waiting += _parents(name)
        for imported in _imports(found[key], name, is_package=path.name == "__init__.py"):
            waiting += _ours(imported, name)
    return found


def _ours(imported: str, importer: str) -> list[str]:
    top = imported.partition(".")[0]
    if top == _PACKAGE:
        return [imported]
    if top in sys.stdlib_module_names:
        return []
    raise SlurmtrainError(f"{importer} imports {top}, which is not in the standard library: the agent cannot be frozen")


def _find_source(root: Path, name: str) -> Path | None:
    base = root.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _imports(source: bytes, name: str, *, is_package: bool) -> Iterator[str]:
    """Every module that the source names in an import statement, those under ``if TYPE_CHECKING`` left out."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, name, is_package=is_package)
            yield module
            if module.partition(".")[0] == _PACKAGE:  # a name may be a module itself
                yield from (f"{module}.{alias.name}" for alias in node.names)
        else:
            waiting += ast.iter_child_nodes(node)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _absolute(node: ast.ImportFrom, name: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = name.split(".")
    base = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*base, node.module] if node.module else base)


def _add(archive: zipfile.ZipFile, path: str, data: bytes) -> None:
    info = zipfile.ZipInfo(path, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    info.create_system = 3
    archive.writestr(info, data)
