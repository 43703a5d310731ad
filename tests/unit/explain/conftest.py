"""Makes ``made_runs`` and ``page_kinds`` importable for the tests beside it."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "status")]
