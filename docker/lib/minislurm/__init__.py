"""A small but real Slurm cluster on one machine, native or in containers (standard library only)."""
