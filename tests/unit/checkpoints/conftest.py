"""Makes ``made_runs`` and ``samples`` importable for the tests beside it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "status"))
sys.path.insert(0, str(Path(__file__).parent))
