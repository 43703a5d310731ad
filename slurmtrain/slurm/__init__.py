"""Slurm: one protocol, several clients."""
