"""The git state of a working directory, read without running anything that the repository may name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from slurmtrain.evidence.bounded import Output

MAX_DIFF = 1 << 20
_MAX_STATUS = 128 << 10
_TIMEOUT_S = 6.0
# A repository's own settings can start programs: monitors, hooks, filters, external diffs, pagers, helpers.
_SAFE = (
    "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat",
    "-c", "diff.external=", "-c", "core.untrackedCache=keep", "-c", "protocol.allow=never", "-c", "core.quotePath=true",
    "-c", "credential.helper=", "-c", "core.attributesFile=/dev/null", "-c", "submodule.recurse=false",
    "-c", "status.submoduleSummary=false", "--no-optional-locks",
)  # fmt: skip
_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all")


def read_worktree(folder: Path, run: Callable[..., Output], note: Callable[[str], None]) -> dict[str, str]:
    """File name → text: commit, status, remotes and the changes against the commit. Empty where there is no git."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        note(f"{folder} is no git repository")
        return {}
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environ |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}

    filters: list[str] = []

    def git(*arguments: str, max_bytes: int = _MAX_STATUS) -> str:
        argv = ("git", *_SAFE, *filters, "-C", str(folder), *arguments)
        done = run(*argv, timeout_s=_TIMEOUT_S, max_bytes=max_bytes, env=environ)
        if done.truncated:
            note(f"git {arguments[0]}: the first {max_bytes >> 10} KiB are kept")
        elif not done.ok and done.returncode not in (124, 127):
            note(f"git {arguments[0]}: {done.stderr.strip() or f'ended with {done.returncode}'}")
        return done.stdout

    commit = git("log", "-1", "--no-show-signature", "--no-color", "--decorate=short", "--format=%H%n%D%n%an%n%cI%n%s")
    if not commit:
        return {}
    filters += _switch_off(git("config", "--list", "--name-only", "--includes"))
    files = {
        "commit.txt": commit,
        "remotes.txt": git("remote", "-v"),
        "status.txt": git("status", "--porcelain=v1", "--branch", "--ignore-submodules=all"),
        "changes.diff": git("diff", *_DIFF, "HEAD", max_bytes=MAX_DIFF),
    }
    return {name: text for name, text in files.items() if text}


def _switch_off(names: str) -> list[str]:
    """Filters (``filter.NAME.clean``) are programs that run on changed files; an empty one does nothing.

    Files of git-lfs then count as changed where they are: their content against their pointers.
    """
    found = sorted({line.rpartition(".")[0] for line in names.splitlines() if line.lower().startswith("filter.")})
    off = [f"{name}.{key}=" for name in found for key in ("clean", "smudge", "process")]
    off += [f"{name}.required=false" for name in found]
    return [word for setting in off for word in ("-c", setting)]
