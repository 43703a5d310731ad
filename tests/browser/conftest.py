"""One browser for all tests here; without one they fail, and say what to install."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "explain"), str(HERE.parent / "unit" / "status")]

from browser import PROGRAMS, Browser, find_browser  # noqa: E402


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.fail(
            f"NO BROWSER ({', '.join(PROGRAMS)}): apt-get install --no-install-recommends chromium-headless-shell"
        )
    with Browser(program, tmp_path_factory.mktemp("profile")) as running:
        yield running
