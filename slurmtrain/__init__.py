"""slurmtrain: training jobs on plain Slurm that survive, and explain themselves when they do not."""

__version__ = "0.1.0"
