"""Entry point: `python3 -I -B docker/lib VERB ...` (the directory is put on sys.path by Python)."""

import sys

from minislurm.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
