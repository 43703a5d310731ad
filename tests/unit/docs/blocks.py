"""The fenced blocks of README and docs: which commands they show, and how a test runs them.

A line before a block says what it is: ``<!-- file: NAME -->`` for the content of a file, and for ``console`` and
``bash`` blocks ``<!-- run: HOW -->``:

- ``cluster``: run by the researcher on a cluster, all blocks of a page in order, in one folder with the page's files
- ``here``: run by a unit test, in a folder with the page's files
- ``help``: only ``--help`` of each command is run here; what it does is tested elsewhere
- ``not, REASON``: not run

A command line is one that begins with ``$``; ``# exits with N`` at its end tells the expected exit code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
HOW = ("cluster", "here", "help", "not")
_FENCE = re.compile(r"^```(\w*)\s*$")
_MARK = re.compile(r"^<!-- (run|file): (.+?) -->\s*$")
_EXIT = re.compile(r"\s+# exits with (\d+)$")


@dataclass(frozen=True)
class Block:
    """One fenced block: ``line`` is that of its first fence, counted from 1."""

    page: Path
    line: int
    language: str
    mark: tuple[str, str] | None
    text: str

    @property
    def shows_commands(self) -> bool:
        return self.language in ("console", "bash", "sh", "shell")

    @property
    def how(self) -> str:
        """``cluster``, ``here``, ``help``, ``not``, or empty where no mark says."""
        return self.mark[1].split(",")[0].strip() if self.mark and self.mark[0] == "run" else ""

    @property
    def commands(self) -> list[tuple[str, int]]:
        """Command lines and the exit codes that they should have."""
        found = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                code = _EXIT.search(line)
                found.append((_EXIT.sub("", line[2:]), int(code.group(1)) if code else 0))
        return found


def pages() -> list[Path]:
    """README and everything below docs."""
    return [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]


def read_blocks(page: Path) -> list[Block]:
    blocks: list[Block] = []
    mark: tuple[str, str] | None = None
    opened: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, lines = (number, fence.group(1)), []
        elif opened is not None and fence:
            blocks.append(Block(page, opened[0], opened[1], mark, "\n".join(lines) + "\n"))
            opened, mark = None, None
        elif opened is not None:
            lines.append(line)
        elif line.strip():
            found = _MARK.match(line)
            mark = (found.group(1), found.group(2)) if found else None
    return blocks


def files_of(page: Path) -> dict[str, str]:
    """Files that a page shows whole."""
    return {block.mark[1]: block.text for block in read_blocks(page) if block.mark and block.mark[0] == "file"}


def find_file(name: str) -> str:
    """The content of a file that some page shows."""
    for page in pages():
        if name in files_of(page):
            return files_of(page)[name]
    raise KeyError(name)
