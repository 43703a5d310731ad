"""``python -m slurmtrain``."""

from slurmtrain.cli.main import main

if __name__ == "__main__":
    main()
