"""From a spec to the files that Slurm runs."""
