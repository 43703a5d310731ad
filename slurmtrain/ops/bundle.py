"""One archive of a run for a ticket: what explains it, bounded, secrets masked, and a list of what is not in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import slurmtrain
from slurmtrain.errors import NotFoundError
from slurmtrain.evidence.secrets import Masker
from slurmtrain.hosts.files import open_file
from slurmtrain.logs.lines import clean
from slurmtrain.ops.bundle_files import LeftOut, Source, choose_files
from slurmtrain.ops.explain import Explanation
from slurmtrain.ops.extract import find_line
from slurmtrain.ops.masking import make_masker
from slurmtrain.ops.status import iso_time
from slurmtrain.store.archive import Member, write_archive
from slurmtrain.store.folded import unfolded
from slurmtrain.store.publish import to_json

MAX_SIZE = 25 << 20  # of the contents: a ticket system takes no more
MANIFEST = "MANIFEST.json"
_PEM_REACH = 1 << 18
_PEM = re.compile(rb"-----(BEGIN|END) [A-Z ]{0,40}-----")
_LOOKED_AT = 8192
_MOST_NAMED = 2000  # files that the manifest names as left out


@dataclass(slots=True)
class Bundle:
    """What became of it; ``members`` are the manifest's rows."""

    path: Path
    members: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    size: int = 0  # of the contents, in bytes


def write_bundle(
    found: Explanation,
    path: Path,
    texts: Mapping[str, str],
    now: float,
    *,
    since_attempt: int = 0,
    max_size: int = MAX_SIZE,
) -> Bundle:
    """Write the archive. ``texts`` (name → content) come first, masked like the rest. Raises ``StoreError``."""
    view = found.view
    if view is None:
        raise NotFoundError(f"the directory of run {found.status.run_id} is not known")
    masker = make_masker(found.plan.spec if found.plan is not None else None)
    maker = _Maker(Bundle(path), masker, max_size, view.run.path.resolve())
    around, blamed = _places_of(found), _blamed(found)

    def members() -> Iterator[Member]:
        for name, text in texts.items():
            yield from maker.text(name, text, now)
        with unfolded(view.run.path, "attempts/") as folded:
            if folded is not None:
                maker.allow(folded.resolve())
            chosen = choose_files(
                view.run, view.state, since_attempt=since_attempt, around=around, blamed=blamed, folded=folded
            )
            for item in chosen:
                yield from maker.file(item)
        if since_attempt:
            maker.leave_out(f"attempts before {since_attempt}", "not asked for")
        yield Member(MANIFEST, maker.manifest(found.status.run_id, now), now)

    write_archive(path, found.status.run_id, members())
    return maker.bundle


def _blamed(found: Explanation) -> set[str]:
    trouble = found.trouble
    if trouble is None:
        return set()
    return {str(trouble.node), *(str(suspect.node) for suspect in trouble.suspects)}


def _places_of(found: Explanation) -> dict[Path, list[int]]:
    """Where in the logs the lines stand that show the cause."""
    places: dict[Path, list[int]] = {}
    for item in found.evidence:
        if found.view is not None and item.line is not None and (place := find_line(found.view, item)) is not None:
            places.setdefault(place[0], []).append(place[1])
    return places


class _Maker:
    """Takes files one after the other until the bundle is full."""

    def __init__(self, bundle: Bundle, masker: Masker, max_size: int, root: Path) -> None:
        self._roots = [root]
        self.bundle = bundle
        self._masker = masker
        self._left = max_size

    def leave_out(self, name: str, why: str) -> None:
        self.bundle.left_out.append(LeftOut(self._name(name), self._masker.text(clean(why))))

    def text(self, name: str, text: str, now: float) -> Iterator[Member]:
        yield from self._member(name, text.encode("utf-8", "replace"), now, None)

    def allow(self, root: Path) -> None:
        """Take files from this folder, too."""
        self._roots.append(root)

    def file(self, item: Source | LeftOut) -> Iterator[Member]:
        if isinstance(item, LeftOut):
            self.leave_out(item.name, item.why)
            return
        try:
            with _open_plain(item.path, self._roots) as stream:
                info = os.fstat(stream.fileno())
                if b"\0" in stream.read(_LOOKED_AT):
                    self.leave_out(item.name, "binary")
                    return
                data = _read_pieces(stream, item.pieces, self._left)
        except OSError as exc:
            self.leave_out(item.name, f"it cannot be read: {exc.strerror or exc}")
            return
        if data is None:
            self.leave_out(item.name, "the bundle would be too large")
            return
        yield from self._member(item.name, data, info.st_mtime, info.st_size)

    def _member(self, name: str, data: bytes, modified: float, whole: int | None) -> Iterator[Member]:
        target = BytesIO()
        self._masker.copy(BytesIO(data), target)
        masked = target.getvalue()
        if len(masked) > self._left:
            self.leave_out(name, "the bundle would be too large")
            return
        self._left -= len(masked)
        self.bundle.size += len(masked)
        row = {"name": self._name(name), "size": len(masked), "secrets_masked": masked != data}
        self.bundle.members.append(row | ({"of_bytes": whole} if whole is not None and whole != len(data) else {}))
        yield Member(str(row["name"]), masked, modified)

    def _name(self, name: str) -> str:
        """A name may be a secret, too, or want out of its folder."""
        parts = [clean(self._masker.text(part), 200).replace("/", "_") for part in name.split("/")]
        return "/".join(part for part in parts if part not in {"", ".", ".."})

    def manifest(self, run_id: str, now: float) -> bytes:
        """What is there, what is not, and why."""
        left_out = [asdict(item) for item in self.bundle.left_out[:_MOST_NAMED]]
        data = {"run_id": run_id, "made_at": iso_time(now), "slurmtrain": slurmtrain.__version__}
        more = len(self.bundle.left_out) - len(left_out)
        return to_json({**data, "files": self.bundle.members, "left_out": left_out, "left_out_unnamed": more})


def _open_plain(path: Path, roots: Sequence[Path]) -> BinaryIO:
    """A regular file below one of ``roots``, also if somebody puts a link in its or a folder's place meanwhile."""
    if path.is_symlink():
        raise OSError(0, "a symbolic link")
    stream = open_file(path)
    opened = Path(f"/proc/self/fd/{stream.fileno()}").readlink()
    if not any(opened.is_relative_to(root) for root in roots):
        stream.close()
        raise OSError(0, "it was replaced meanwhile")
    return stream


def _read_pieces(stream: BinaryIO, pieces: tuple[tuple[int, int], ...], room: int) -> bytes | None:
    """The file, or its pieces with a mark between them; None for more than ``room`` bytes."""
    if not pieces:
        stream.seek(0)
        data = stream.read(room + 1)
        return data if len(data) <= room else None
    if sum(end - start for start, end in pieces) > room:
        return None
    found, at = bytearray(), 0
    for start, end in pieces:
        data, first = _whole_lines(stream, start, end)
        if first > at:
            found += f"=== {first - at} bytes left out ===\n".encode()
        found += data
        at = first + len(data)
    return bytes(found)


def _whole_lines(stream: BinaryIO, start: int, end: int) -> tuple[bytes, int]:
    """Whole lines between two places, and where they begin: half a secret could not be recognised.

    What still belongs to a private key that begins before it is left out.
    """
    before = max(0, start - _PEM_REACH)
    stream.seek(before)
    context, data = stream.read(start - before), stream.read(end - start)
    skip = 0
    if start > 0 and not context.endswith(b"\n"):
        skip = data.find(b"\n") + 1 or len(data)
    marks = list(_PEM.finditer(context))
    if marks and marks[-1][1] == b"BEGIN":
        closing = next((mark for mark in _PEM.finditer(data) if mark[1] == b"END"), None)
        skip = max(skip, closing.end() if closing is not None else len(data))
    last = data.rfind(b"\n") + 1
    return (data[skip : max(skip, last)] if last else b""), start + skip
