"""Doubles for plugin authors and unit tests: a Slurm in memory with a hand-driven clock."""
