"""docker/lib is a program's folder, not a package of slurmtrain: it is put on the path for these tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "docker" / "lib"))
